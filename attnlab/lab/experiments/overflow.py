"""Which backend overflows or underflows, in which format, at which logit?

e^x overflows above ln(max) of its format, and the sum of n of them, for equal logits, above ln(max) − ln n: exp(s)/Σ
exp(s) then gives 1/∞ = 0 for every key, above ln(max) ∞/∞ and, where all logits are very negative (−110 in float32),
0/0, a NaN. A softmax that first subtracts the row's largest logit has a largest exponent of 0 and meets neither, unless
n itself exceeds the largest number of its sum's format. A single weight still underflows: a key whose logit lies Δ
below n − 1 equal ones has the weight e^{−Δ}/(n − 1), rounded to 0 below half the smallest subnormal number. A kernel
that flushes subnormal numbers loses it earlier: as soon as e^{−Δ} is below about the smallest normal number, where it
flushes the exponential, or the weight itself, where it flushes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.lab.experiment import Chart, Experiment, Row, Subject, measured, of
from attnlab.lab.theory import float_format, overflow_threshold, underflow_threshold
from attnlab.workload.number_formats import DTYPES, carrier, round_to

#: keys of a row, of which one lies below all others; two leave vectorised code to its scalar remainder
KEYS = (2, 64)
#: keys of a row of equal logits, for the softmax that subtracts nothing
SUMMED_KEYS = (1, 1024)
#: a polynomial exponential may stop this far before the last normal number
_FLUSH_SLACK = 0.5
KEPT, FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT = "kept", "exponential flushed", "weight flushed"
GAP, LIMIT = "gap at which a weight becomes 0", "unshifted softmax overflows above"
TWO_EQUAL = "weight of two equal logits at twice ln(max)"


def measure(one: Subject) -> Iterator[Row]:
    """The gap at which a weight becomes 0, and whether logits beyond ln(max) survive. Nothing is random here.

    A gap passes within one spacing of the format of the exact one, subnormal numbers kept, or within half a unit of one
    of those at which exponentials or weights are flushed (said in `where`).
    """
    if one.lead and one.dtype != "bfloat16":
        yield from textbook_overflow(one.dtype)
    for keys in KEYS:
        found = last_before(partial(_alive, one, keys), 1.0, 2000.0)
        gaps, subnormals = vanishing_gaps(one.dtype, keys), KEPT
        slack = spacing(one.dtype, gaps[KEPT])
        if abs(found - gaps[KEPT]) > slack:
            subnormals = min(FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT, key=lambda name: abs(found - gaps[name]))
            slack = max(slack, _FLUSH_SLACK)
        where = {"dtype": one.dtype, "keys": keys, "subnormals": subnormals}
        yield one.row(GAP, where, gaps[subnormals], found, slack=slack)
    # the scale makes the logit, not the product
    logit = 2 * overflow_threshold(one.dtype)
    q, k, v = (np.ones((1, 1, n, 8), carrier(one.dtype)) for n in (1, 2, 2))
    v[0, 0, 1] = 0
    weight = float(one.attend(q, k, v, causal=False, scale=logit / 8)[0, 0, 0, 0])
    room = 2 * float_format(one.dtype).unit_roundoff
    yield one.row(TWO_EQUAL, {"dtype": one.dtype, "logit": logit}, 0.5, weight, slack=room)


def last_before(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x at which `holds` is still true, by bisection between `low`, where it is, and `high`.

    Infinite where it holds at `high` too, `low` where it does not even hold there.
    """
    if holds(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def spacing(dtype: str, at: float) -> float:
    """Distance between neighbouring numbers of `dtype` around `at`."""
    return float(2.0 ** (math.floor(math.log2(at)) + 1 - float_format(dtype).precision))


def textbook_overflow(dtype: str) -> Iterator[Row]:
    """Where exp(s)/Σexp(s) of n equal logits fails, and with what.

    The sum overflows first, to weights of 0; then each exponential does, to NaN, as where all are 0.
    """
    limit, textbook = overflow_threshold(dtype), {"backend": "textbook exp(s)/Σexp(s)", "dtype": dtype}

    def weights(logit: float, keys: int) -> NDArray[Any]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            exponentials = np.exp(np.full(keys, logit).astype(dtype))
            return np.asarray(exponentials / exponentials.sum())

    def alive(logit: float, keys: int) -> bool:
        return bool((weights(logit, keys) > 0).all())

    for keys in SUMMED_KEYS:
        where, expected = {**textbook, "keys": keys}, limit - math.log(keys)
        room = spacing(dtype, expected) + 2 * float_format(dtype).unit_roundoff
        found = last_before(partial(alive, keys=keys), 1.0, 4 * limit)
        yield Row.compare(LIMIT, where, expected, found, slack=room)
    low = -underflow_threshold(dtype) - 1
    for logit, zero, nan in ((limit - math.log(keys) / 2, 1.0, 0.0), (limit + 1, 0.0, 1.0), (low, 0.0, 1.0)):
        failed, where = weights(logit, keys), {**where, "logit": logit}
        yield Row.compare("share of unshifted weights that are 0", where, zero, np.mean(failed == 0))
        yield Row.compare("share of unshifted weights that are NaN", where, nan, np.mean(np.isnan(failed)))


def vanishing_gaps(dtype: str, keys: int) -> dict[str, float]:
    """The gap at which the lowest weight of `keys` becomes 0, by what a kernel does with subnormal numbers.

    The other keys share the weight, so the lowest one is e^{−gap}/(n − 1).
    """
    shared, flushed = math.log(keys - 1), -math.log(float_format(dtype).smallest_normal)
    return {
        KEPT: underflow_threshold(dtype) - shared,
        FLUSHED_EXPONENTIAL: flushed,
        FLUSHED_WEIGHT: flushed - shared,
    }


def _alive(one: Subject, keys: int, gap: float) -> bool:
    """Whether the one key of `keys` whose logit lies `gap` below all others, which are 0, has a weight."""
    q, k, v = (np.zeros((1, 1, n, keys), carrier(one.dtype)) for n in (1, keys, keys))
    q[..., 0], k[0, 0, -1, 0], v[0, 0, -1] = 1, round_to(np.array([-gap]), one.dtype)[0], 1
    return bool(one.attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0] > 0)


EXPERIMENT = Experiment(
    title="Overflow and underflow",
    measure=measure,
    dtypes=DTYPES,
    sentence="A softmax that does not subtract its largest logit returns zeros over 1024 equal logits above "
    "{half:.2f} in float16 and {single:.2f} in float32, and NaN above {nan:.2f} and {single_nan:.2f}.",
    numbers={
        "half": measured(LIMIT, keys=1024, dtype="float16"),
        "single": measured(LIMIT, keys=1024, dtype="float32"),
        "nan": measured(LIMIT, keys=1, dtype="float16"),
        "single_nan": measured(LIMIT, keys=1, dtype="float32"),
    },
    lesson="Subtract the largest logit; over 1024 equal logits exp(s)/Σ exp(s) fails in float16 above a logit of "
    "4.16, with zeros instead of an error, and with NaN below −17.33. Keep scores of float16 inputs in float32: q·k "
    "can pass 65504 while the scaled logit is harmless, and then no subtraction helps.",
    charts=(
        Chart(
            title="A key this far below the others weighs nothing",
            y="gap Δ below 63 equal logits (bar: predicted)",
            by="backend",
            lines={dtype: of(GAP, dtype=dtype, keys=64) for dtype in DTYPES},
            limits=(10.0, 1000.0),
        ),
    ),
)
