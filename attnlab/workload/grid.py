"""Workloads from what a person writes: options of the command line and of pytest, plan files, `Plan.grid`.

The options are made from the declarations of the fields of `Workload` (``--causal`` is declared there). A new field
needs no change here. One workload has ``--length``, a grid ``--lengths``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from itertools import product
from typing import Annotated, Any, get_type_hints

import msgspec

from attnlab.errors import FieldError
from attnlab.workload.distributions import SUFFIX, Captured, named
from attnlab.workload.workload import GIVEN, Workload, declaration, option

#: the default values of a grid
GRID = {"lengths": (64, 128, 256, 512, 1024, 2048), "heads": (1, 4, 16)}
_KINDS = get_type_hints(Workload)
#: the names of types in messages
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
#: how true and false may be written; capitals are allowed too
_FLAGS = {"true": True, "false": False, "none": False}


@dataclass(frozen=True)
class Choice:
    """One option. Its value is given to all its `fields`; if it takes `several` values, these span a grid.

    group : its heading on a help page.
    """

    name: str
    fields: tuple[Field[Any], ...]
    group: str
    several: bool = False

    @property
    def bare(self) -> bool:
        """Whether the option may stand without a value, which means true."""
        return self.fields[0].default is False

    def help(self, default: str = "") -> str:
        """The line of help, with `default`; without it, with the default of the field if that is worth showing."""
        first = self.fields[0]
        together = " and ".join(field.name for field in self.fields).capitalize() + "."
        text = together if len(self.fields) > 1 else declaration(first).help
        if names := declaration(first).names:
            text = f"{text.removesuffix('.')}: {', '.join(names)}."
        if not self.several and "[default" not in text and first.default not in (None, False, "", "none", 0):
            default = default or str(first.default)
        return f"{text} [default: {default}]" if default else text

    @property
    def metavar(self) -> str:
        """``N`` for a number, otherwise the name in capitals; ``N,N`` for several."""
        first = self.fields[0].name
        name = {int: "N", float: "X"}.get(_KINDS[first], first.upper())
        return f"{name},{name}" if self.several else f"[{name}]" if self.bare else name

    @property
    def kind(self) -> Any:
        """The type of its value in a plan file."""
        kind = _KINDS[self.fields[0].name]
        every: Any = tuple[kind, ...]  # type: ignore[valid-type]
        return Annotated[every, msgspec.Meta(min_length=1)] if self.several else kind

    def read(self, text: str) -> Any:
        """The value that `text` stands for. Raises ValueError, naming the option, for a text of another type."""
        if self.bare and text.lower() in _FLAGS:
            return _FLAGS[text.lower()]
        kind = str(self.fields[0].type).partition(" ")[0].partition("[")[0]
        listed = self.several or kind == "tuple"
        try:
            pieces = [one.strip() for one in text.split(",")] if listed else text.strip()
            found = msgspec.convert(pieces, self.kind, strict=False)
        except msgspec.ValidationError:
            words = _WORDS.get(kind, "whole numbers separated by commas")
            each = "takes values between commas, each of which " if self.several else ""
            raise ValueError(f"{option(self.name)} {each}must be {words}, got {text!r}") from None
        return tuple(dict.fromkeys(found)) if self.several else found


@cache
def choices(*, grid: bool) -> tuple[Choice, ...]:
    """All options of a workload, or of a `grid` of them, in the order of the fields.

    Fields with the same plural may be set together (``lengths``; ``length`` for one workload), and each alone. A field
    that shares its plural with no other one has only the plural in a grid.
    """
    found: dict[str, Choice] = {}
    group, every = "", fields(Workload)
    for field in every:
        group = declaration(field).group or group
        plural = declaration(field).several
        together = tuple(one for one in every if plural and declaration(one).several == plural) or (field,)
        alone = len(together) > 1
        if plural and (grid or alone):
            name = plural if grid else plural.removesuffix("s")
            found.setdefault(name, Choice(name, together, group, several=grid))
        if not plural or not grid or alone:
            found.setdefault(field.name, Choice(field.name, (field,), group))
    return tuple(found.values())


def workloads(said: Mapping[str, Any], *, grid: bool = True) -> tuple[Workload, ...]:
    """The workloads for the values in `said`, by the names of `choices`; None stands for a value that is not given.

    A grid has all combinations, small to large: the dtype changes last, after the length. The sizes of inputs from a
    file (`attnlab.workload.distributions`) are those of the file unless others are given. Raises ValueError as
    `Workload` does.
    """
    asked = said.get("distribution")
    file = named(asked) if asked is not None and SUFFIX in asked.partition("@")[0] else None
    known = [choice for choice in choices(grid=grid) if said.get(choice.name) is not None]
    values = [said[choice.name] if choice.several else (said[choice.name],) for choice in known]
    found: list[Workload] = []
    for chosen in product(*reversed(values)):
        fields: dict[str, Any] = {}
        for choice, value in zip(known, reversed(chosen), strict=True):
            fields |= dict.fromkeys((field.name for field in choice.fields), value)
        found.append(Workload(**fields) if file is None else _of_file(file, fields))
    for name in ("mask", "bias"):
        if any(getattr(one, name) == GIVEN for one in found):
            raise FieldError(name, f"{GIVEN!r} stands for an array of a caller's own: name one")
    return tuple(dict.fromkeys(found))  # if queries and keys are both given, all lengths give the same one


def _of_file(one: Captured, said: Mapping[str, Any]) -> Workload:
    """The workload of one layer, with the values in `said`. Raises FieldError for sizes beyond those of the file."""
    held = Workload.of_inputs(one.inputs())
    heads, group = said.get("heads", held.heads), held.heads // held.kv_heads
    found = held.with_(**{"kv_heads": max(1, heads // group), **said, "distribution": one.text})
    if heads != group * found.kv_heads and (found.kv_heads > 1 or heads > group):
        raise FieldError("heads", f"must be at most {group} or {group} for each key head, got {heads}")
    for name in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "value_dim"):
        asked, most = getattr(found, name), getattr(held, name)
        bound = "" if name.endswith("_dim") else "at most "
        if asked > most or (not bound and asked < most):
            raise FieldError(name, f"must be {bound}the {most} of {one.text}, got {asked}")
    return found


def read_options(texts: Mapping[str, str | None], *, grid: bool) -> dict[str, Any]:
    """The values of the options that were given, by name. Raises ValueError, naming the option."""
    given = ((choice, texts.get(choice.name)) for choice in choices(grid=grid))
    return {choice.name: choice.read(text) for choice, text in given if text is not None}


def by_option(fault: ValueError, given: Collection[str], *, grid: bool) -> ValueError:
    """`fault` with the option that was typed, one of `given`, in place of the name of the field."""
    if isinstance(fault, FieldError):
        for choice in choices(grid=grid):
            if choice.name in given and any(one.name == fault.field for one in choice.fields):
                return ValueError(f"{option(choice.name)} {fault.wrong}")
    return fault
