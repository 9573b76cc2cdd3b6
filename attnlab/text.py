"""Text: numbers with units, foreign text made safe to show, names that a user writes, and data decoded strictly.

Text from backends, libraries and files may contain terminal escapes, characters that reverse the direction of writing,
thousands of characters, or the path of a home folder. `one_line` makes it one line, shortened, without control
characters and without that path.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from attnlab.errors import NotStored

#: most characters of a reason; attnlab's own longest reasons have about 300
MOST = 400
#: a terminal's escape sequences: CSI with its parameters, OSC up to its end, and any other with one letter
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|\x1b.?", re.DOTALL)
#: Unicode categories not shown: controls, formats (some reverse the direction), surrogates, private use, unassigned
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
#: units with their sizes, the largest first
_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_RATES = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))


def read_text(file: Path, most: int) -> str:
    """The UTF-8 text of a file of at most `most` bytes; a longer file is not read to its end.

    Raises ValueError for a longer file and for text that is not UTF-8, OSError for a file that cannot be read.
    """
    with file.open("rb") as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it holds more than the {most:,} bytes that one may have")
    return data.decode()


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file. It is on the disk before this returns; a reader finds the whole old file or the whole new one.

    Raises NotStored.
    """
    fresh = file.with_suffix(".new")
    try:
        with fresh.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        fresh.replace(file)
    except OSError as fault:
        raise NotStored(
            f"{file} cannot be written: {fault.strerror}; what was written before is kept"
        ) from None


def one_line(text: str, most: int = MOST) -> str:
    """`text` in one line of about `most` printable characters; if it is longer, the number of the rest is added."""
    shown = text[: 64 * most]
    if not shown.isprintable():  # most texts are printable, and the loop below is slow
        shown = _ESCAPES.sub("", shown)
        spaced = (" " if one.isspace() else one for one in shown)
        shown = "".join(one for one in spaced if unicodedata.category(one) not in _HIDDEN)
    shown = without_home(" ".join(shown.split()))
    if len(shown) <= most:
        return shown
    return f"{shown[:most].rstrip()}… ({len(shown) - most} more letters)"


def without_home(text: str) -> str:
    """`text` with ``~`` for the path of the home folder, which contains a person's name."""
    if os.sep not in text:
        return text
    home = str(Path.home()).rstrip("/\\")
    return re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text) if len(home) > 1 else text


def number_text(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, without an exponent from 0.001 to below a million."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "nan")
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    if not 1e-3 <= abs(rounded) < 1e6:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def seconds_text(seconds: float) -> str:
    """A time: ``12.3 µs``."""
    return _in_units(seconds, _TIMES)


def bytes_text(count: float) -> str:
    """A number of bytes in binary units: ``1.50 MiB``."""
    return f"{count:.0f} B" if count < 2**10 else _in_units(count, _BINARY)


def flops_text(rate: float) -> str:
    """A rate of floating-point operations: ``123 GFLOP/s``."""
    return _in_units(rate, _RATES)


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction in percent: ``3.2 %``."""
    return f"{number_text(fraction * 100, digits)} %"


def interval_text(low: float, high: float) -> str:
    """``[1.023, 1.041]``; a `low` of 0 means that there is no interval."""
    return f"[{number_text(low, 4)}, {number_text(high, 4)}]" if low > 0 else "[no interval]"


def _in_units(value: float, units: tuple[tuple[str, float], ...]) -> str:
    # 999.7 µs rounds to 1,000 µs, which is 1 ms
    name, unit = next((one for one in units if float(f"{value / one[1]:.2e}") >= 1), units[-1])
    return f"{number_text(value / unit)} {name}"


# -- what a user writes

#: most seconds, hours or items: longer than anybody waits, and short enough for functions that wait
LARGEST = 10**6


def within(name: str, value: float, most: int = LARGEST) -> float:
    """`value` if it is above 0 and at most `most`. Raises ValueError otherwise."""
    if not isinstance(value, Real) or not 0 < value <= most:  # nan fails too
        raise ValueError(f"{name} must be above 0 and at most {most:,}, got {value!r}")
    return value


def split_names(text: str) -> list[str]:
    """The names between commas; commas in brackets do not separate names: ``a,b[threads=1,X=2]`` is two names.

    Raises ValueError for an empty name.
    """
    names = [name.strip() for name in re.split(r",(?![^\[\]]*\])", text)]
    if not all(names):
        raise ValueError(f"a list of names is separated by single commas, got {text!r}")
    return names


T = TypeVar("T")
#: names that are at least this similar (`difflib.SequenceMatcher.ratio`) may be typing mistakes: a name of five letters
#: with two neighbours exchanged is this similar. Names that only share ``torch_`` are less similar
_ALIKE = 0.8
#: a part of a name finds the name if it has at least this number of letters
_TELLING = 3


def decode(data: Any, kind: type[T], where: str, *, strict: bool = True, known_only: bool = True) -> T:
    """`data` as a `kind`, a dataclass. Dataclasses within `data` stay as they are.

    If not `strict`, numbers may be written as text; in JSON, "nan" and "inf" must be. If not `known_only`, unknown keys
    are skipped.

    Raises ValueError, beginning with `where`, for an unknown key (similar names are suggested), a missing key, a value
    of a wrong type, and whatever the dataclass itself refuses.
    """
    import msgspec  # imported here: the list of commands does not need it

    if known_only:
        _refuse_unknown(data, kind, where)
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as fault:
        raise ValueError(f"{where}: {fault}") from None


def _refuse_unknown(data: Any, kind: Any, where: str) -> None:
    """Raises ValueError for a key without a field: msgspec skips such keys."""
    if not (is_dataclass(kind) and isinstance(data, Mapping)):
        return
    known = get_type_hints(kind)
    for name, value in data.items():
        if name not in known:
            raise ValueError(f"{where}: unknown key {name!r}; {suggestion(str(name), known)}")
        _refuse_unknown(value, known[name], f"{where}: {name}")


def finite(value: Any, *, named: bool = True) -> Any:
    """Data that JSON can hold: NaN and infinity become "nan" and "inf" if `named`, else None."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if named else None
    if isinstance(value, Mapping):
        return {str(name): finite(one, named=named) for name, one in value.items()}
    return [finite(one, named=named) for one in value] if isinstance(value, list | tuple) else value


def suggestion(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """``did you mean A or B?``, with at most three of the `known` names that are similar to `name` or contain it.

    If there are none: `otherwise`, or the list of all names.
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=_ALIKE)
    if not near and len(name) >= _TELLING:
        near = difflib.get_close_matches(name, [one for one in names if name in one], n=3, cutoff=0.0)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"there are: {', '.join(names)}"
