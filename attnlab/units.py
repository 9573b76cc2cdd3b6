"""Numbers as a person reads them, with the unit that fits: the one place for tables, sentences and figures."""

from __future__ import annotations

import math

_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_RATES = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))


def number_text(value: float, digits: int = 3) -> str:
    """`value` to so many significant digits, without an exponent between 0.001 and a million."""
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
    """Floating-point operations in a second: ``123 GFLOP/s``."""
    return _in_units(rate, _RATES)


def quantity_text(value: float, unit: str) -> str:
    """A value of any base unit; of s and B as above, of 1 the number alone."""
    if unit in ("s", "B"):
        return seconds_text(value) if unit == "s" else bytes_text(value)
    return number_text(value) if unit == "1" else f"{number_text(value)} {unit}"


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction in percent: ``3.2 %``."""
    return f"{number_text(fraction * 100, digits)} %"


def ratio(value: float) -> str:
    """A ratio, with the digits that a difference of 1 % needs: ``1.023``, ``12.4``."""
    return f"{value:.3f}" if 0.1 <= value < 2 else number_text(value)


def interval(low: float, high: float) -> str:
    """``[1.02, 1.04]``"""
    return f"[{ratio(low)}, {ratio(high)}]"


def _in_units(value: float, units: tuple[tuple[str, float], ...]) -> str:
    for name, unit in units:
        # 999.7 µs rounds to 1,000 µs, which is 1 ms
        if float(f"{value / unit:.2e}") >= 1:
            return f"{number_text(value / unit)} {name}"
    name, unit = units[-1]
    return f"{number_text(value / unit)} {name}"
