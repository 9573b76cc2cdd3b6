"""How a field of a workload is declared: once, with all that commands, plan files, pytest, labels and tables need."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: what a seed may be at most: what stored tables hold
MOST_SEED = 2**63 - 1
#: what seconds, hours and numbers of things may be at most: longer than anybody waits, within what clocks can wait
MOST = 10**6


@dataclass(frozen=True)
class Declared:
    """What is declared of a field beside its name and its default.

    help : one line for a person, which names are added to. read : from text to the value, by default that of its type.
    brief : its part of a label, with the value in {}, or a function from the value to that; empty for nothing, and None
    for the name of a flag, the value of a field that has names, and otherwise ``name=value``. always : whether a label
    says it at its default too. several : the plural under which a grid takes many values of it. also : a second name of
    its option. names : the values that it may have, where they are names. most : what a size may be at most. group :
    the heading, on a page of options, of its option and of those of the fields after it that name none.
    """

    help: str
    read: Callable[[str], Any] | None = None
    brief: str | Callable[[Any], str] | None = None
    always: bool = False
    several: str | None = None
    also: str | None = None
    names: tuple[str, ...] = ()
    most: int | None = None
    group: str = ""


def declared(default: Any, help: str, names: Iterable[str] = (), **rest: Any) -> Any:
    """A dataclass field with its declaration."""
    told = Declared(help, names=tuple(names), **rest)
    return dataclasses.field(default=default, metadata={"declared": told})


def declaration(field: dataclasses.Field[Any]) -> Declared:
    """What was declared of `field`."""
    found: Declared = field.metadata["declared"]
    return found


def in_label(field: dataclasses.Field[Any], value: Any) -> str:
    """What a label says of a `value` of `field`; nothing at its default, but for what is said always."""
    told = declaration(field)
    if value == field.default and not told.always:
        return ""
    if told.brief is None:
        return field.name if value is True else value if told.names else f"{field.name}={spoken(value)}"
    return told.brief.format(value) if isinstance(told.brief, str) else told.brief(value)


def option(name: str) -> str:
    """The option of the command line that stands for the field `name`: ``--head-dim``."""
    return "--" + name.replace("_", "-")


def within(name: str, value: float, most: int = MOST) -> float:
    """`value`, where it is above 0 and at most `most`. Raises ValueError otherwise."""
    if not 0 < value <= most:  # nor nan
        raise ValueError(f"{name} must be above 0 and at most {most:,}, got {value}")
    return value


def split_names(text: str) -> list[str]:
    """Names between commas, those inside brackets aside: ``a,b[threads=1,X=2]`` is two names.

    Raises ValueError for an empty name.
    """
    names = [name.strip() for name in re.split(r",(?![^\[\]]*\])", text)]
    if not all(names):
        raise ValueError(f"a list of names is separated by single commas, got {text!r}")
    return names


def spoken(value: Any) -> str:
    """A value as its option's text: ``true``, ``256,0``, ``0.125``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
