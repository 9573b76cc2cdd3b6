"""Quantities as a person reads them: three figures and the unit that fits."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """``1.24 ms``: three significant figures in s, ms or µs."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor * 0.9995:
            return f"{_three(seconds / factor)} {unit}"
    return f"{_three(seconds * 1e6)} µs"


def bytes_text(count: float) -> str:
    """``272 MB``: three significant figures in decimal units."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor * 0.9995:
            return f"{_three(count / factor)} {unit}"
    return f"{count:.0f} B"


def _three(number: float) -> str:
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
