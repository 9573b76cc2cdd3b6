"""Plain data, as JSON and TOML have it, made into dataclasses; a slip is told with the key that it is in."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

T = TypeVar("T")
#: names less alike than this (`difflib.SequenceMatcher.ratio`) are no slips of one another: two letters that changed
#: places in a name of five are this alike, names that only begin with the same ``torch_`` are less
_ALIKE = 0.8
#: letters of a part of a name that tell which is meant
_TELLING = 3
#: JSON's words for a list and a table, which TOML and Python have other words for
_WORDS = {"`": "", "array": "a list", "object": "a table"}


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
        raise ValueError(f"{where}: {_plainly(str(fault), data)}") from None


def finite(value: Any, *, named: bool = True) -> Any:
    """Plain data as JSON has it, without NaN and infinity: `named` they become "nan" and "inf", otherwise None."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if named else None
    if isinstance(value, Mapping):
        return {str(name): finite(one, named=named) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one, named=named) for one in value]
    return value


def unknown(name: str, known: Iterable[str]) -> str:
    """``unknown key 'length'; did you mean lengths?``, or all that are known."""
    names = sorted(known)
    return f"unknown key {name!r}; " + suggestion(name, names, f"known: {', '.join(names)}")


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


def _refuse_unknown(data: Any, kind: Any, where: str, path: str = "") -> None:
    """msgspec passes over keys that a dataclass has no field for: here they are a mistake."""
    if not is_dataclass(kind):
        inner = [one for one in get_args(kind) if one is not type(None) and one is not ...]
        if isinstance(data, list | tuple) and len(inner) == 1:
            for index, one in enumerate(data):
                _refuse_unknown(one, inner[0], where, f"{path.rstrip('.')}[{index}].")
        return
    if not isinstance(data, Mapping):
        return
    hints = get_type_hints(kind, include_extras=True)
    known = {field.name for field in fields(kind)}
    for name, value in data.items():
        if name not in known:
            at = f"{path.rstrip('.')}: " if path else ""
            raise ValueError(f"{where}: {at}{unknown(str(name), known)}")
        _refuse_unknown(value, hints[name], where, f"{path}{name}.")


def _plainly(fault: str, data: Any) -> str:
    """``Expected `int`, got `float` - at `$.lengths[0]` `` as ``lengths[0] must be int, got 2.5``."""
    match = re.fullmatch(r"Expected (.*?)(?:, got .*?)?(?: - at `\$\.?(.*)`)?", fault)
    if match is None:
        return fault.replace("`", "")
    expected, path = match[1], match[2] or "it"
    for word, plain in _WORDS.items():
        expected = expected.replace(word, plain)
    try:
        for name, index in re.findall(r"(\w+)|\[(\d+)\]", match[2] or ""):
            data = data[name if isinstance(data, Mapping) else int(index or name)]
    except (LookupError, TypeError, ValueError):  # a key that the path does not spell
        return f"{path} must be {expected}"
    return f"{path} must be {expected}, got {data!r}"
