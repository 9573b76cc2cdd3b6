"""Text that came from outside, made safe to show: one line, bounded, without control characters or a home's path.

What a backend raises, a library prints or a file holds is data. It may carry terminal escapes, characters that turn the
direction of writing, thousands of letters, or where somebody lives.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

#: letters of a reason; the longest of our own are some 300
MOST = 400
#: a terminal's escape sequences: CSI with its parameters, OSC up to its end, and any other with one letter
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|\x1b.?", re.DOTALL)
#: categories of Unicode that have no shape of their own: controls, formats (they turn the direction), surrogates
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")


def read_text(file: Path, most: int) -> str:
    """The UTF-8 text of a file that holds at most `most` bytes; no more than that is read.

    Raises ValueError for a longer one and for what is no UTF-8, OSError for one that cannot be read.
    """
    with file.open("rb") as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it holds more than the {most:,} bytes that one may have")
    return data.decode()


def one_line(text: str, most: int = MOST) -> str:
    """`text` in one line of at most about `most` letters, printable throughout; what is cut is counted."""
    shown = text[: 64 * most]
    if not shown.isprintable():  # few are not, and looking at every letter takes long
        shown = _ESCAPES.sub("", shown)
        shown = "".join(" " if one.isspace() else one for one in shown if one.isspace() or not _hidden(one))
    shown = without_home(" ".join(shown.split()))
    if len(shown) <= most:
        return shown
    return f"{shown[:most].rstrip()}… ({len(shown) - most} more letters)"


def without_home(text: str) -> str:
    """`text` with the home folder's path as ``~``: it holds a person's name, and figures do not depend on it."""
    if os.sep not in text:
        return text
    home = str(Path.home()).rstrip("/\\")
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text) if len(home) > 1 else text


def listed(items: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def named(names: Iterable[str], last: str = "and") -> str:
    """Names of contenders as code, listed."""
    return listed([f"`{name}`" for name in names], last)


def counted(count: int, noun: str) -> str:
    """``1 head``, ``4 heads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _hidden(one: str) -> bool:
    return unicodedata.category(one) in _HIDDEN
