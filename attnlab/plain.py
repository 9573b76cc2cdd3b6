"""Plain data, as JSON and TOML have it, made into dataclasses; and the name that a slip of the pen meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_type_hints

import msgspec

T = TypeVar("T")
#: names less alike than this (`difflib.SequenceMatcher.ratio`) are no slips of one another: two letters that changed
#: places in a name of five are this alike, names that only begin with the same ``torch_`` are less
_ALIKE = 0.8
#: letters of a part of a name that tell which is meant
_TELLING = 3


def decode(data: Any, kind: type[T], where: str, *, strict: bool = True, known_only: bool = True) -> T:
    """`data` as a `kind`, a dataclass; what is in it already as a dataclass stays as it is.

    Not `strict`, numbers may be written as text, as "nan" and "inf" have to be in JSON. Not `known_only`, keys that
    there is no field for are passed over.

    Raises ValueError, beginning with `where`, for an unknown key, which near names are suggested for, a missing one,
    a value of a wrong type, and what the dataclass itself refuses.
    """
    if known_only:
        _refuse_unknown(data, kind, where)
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as fault:
        raise ValueError(f"{where}: {fault}") from None


def _refuse_unknown(data: Any, kind: Any, where: str) -> None:
    """msgspec passes over keys that a dataclass has no field for: here they are a mistake."""
    if not (is_dataclass(kind) and isinstance(data, Mapping)):
        return
    known = get_type_hints(kind)
    for name, value in data.items():
        if name not in known:
            raise ValueError(f"{where}: unknown key {name!r}; {suggestion(str(name), known)}")
        _refuse_unknown(value, known[name], f"{where}: {name}")


def finite(value: Any, *, named: bool = True) -> Any:
    """Plain data as JSON has it, without NaN and infinity: `named` they become "nan" and "inf", otherwise None."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if named else None
    if isinstance(value, Mapping):
        return {str(name): finite(one, named=named) for name, one in value.items()}
    return [finite(one, named=named) for one in value] if isinstance(value, list | tuple) else value


def suggestion(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """``did you mean A or B?``, where `name` is likely a slip of one of the `known`, or a part of it.

    Three at most, the likest first. Where there is none: `otherwise`, or all that there are.
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=_ALIKE)
    if not near and len(name) >= _TELLING:
        near = difflib.get_close_matches(name, [one for one in names if name in one], n=3, cutoff=0.0)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"there are: {', '.join(names)}"
