"""A softmax in 8 bits, emulated: which weights become 0, what rounding them costs, and where a running sum stops.

E4M3 and E5M2 (Micikevicius et al. 2022, 2209.05433) have unit roundoffs of 1/16 and 1/8, and smallest numbers of 2⁻⁹
and 2⁻¹⁶. Normalised weights are near 1/n: stored in E4M3 they become 0 below 2⁻¹⁰. The weights e^(s − max), the
largest of which is 1, do not depend on n; divided by their sum afterwards, as fused kernels do (Shah et al. 2024,
2407.08608), they cost one rounding each. A running sum in the format stops where its next term is half a unit of its
last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from attnlab.experiments.estimates import mean_over_clusters
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.responses import Array
from attnlab.experiments.survey import generator
from attnlab.theory import ROUNDING_RMS

FORMATS: Mapping[str, Any] = {"float8 E4M3": ml_dtypes.float8_e4m3fn, "float8 E5M2": ml_dtypes.float8_e5m2}
KEYS = (64, 256, 1024, 4096)
_ROWS, _VALUE_DIM = 64, 16
ZERO, ERROR = "share of the stored weights that are 0", "relative error of rounded weights / unit roundoff"
LARGEST = "largest whole number that a running sum of ones reaches"
#: the sum of n exponentials is taken to be its mean; it scatters by √((e − 1)/n), by a tenth at n = 64
_SUM_SCATTER = 0.05
#: what a mantissa that is not log-uniform may change
_OFF = 0.25


def measured(seed: int) -> Iterator[Row]:
    """Rows of standard normal scores: weights stored normalised and not, their error, and running sums of ones."""
    for name, form in FORMATS.items():
        info = ml_dtypes.finfo(form)  # type: ignore[no-untyped-call]
        roundoff, least = 2.0 ** -(info.nmant + 1), float(info.smallest_subnormal)
        for keys in KEYS:
            rng = generator(seed, 2000, keys)
            scores = rng.standard_normal((_ROWS, keys))
            v = rng.standard_normal((_ROWS, keys, _VALUE_DIM))
            shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
            sums = shifted.sum(axis=1, keepdims=True)
            where: Where = {"dtype": name, "keys": keys}
            # p = e^s/Z with Z = n√e: below half the smallest number where s is below its logarithm
            zero = _normal_below(math.log(least / 2) + math.log(keys) + 0.5)
            yield _zeros({**where, "stored": "normalised"}, shifted / sums, form, zero)
            yield _zeros({**where, "stored": "unnormalised"}, shifted, form, None, least / 2)
            stored = shifted.astype(form).astype(np.float64)
            yield _error({**where, "stored": "unnormalised"}, stored / sums, shifted / sums, v, roundoff)
            stored = (shifted / sums).astype(form).astype(np.float64)
            exact = _relative(stored, shifted / sums, v)
            yield Row.only_measured(ERROR, {**where, "stored": "normalised"}, exact / roundoff)
        yield Row.compare(LARGEST, {"dtype": name}, 1 / roundoff, _running_sum(form))


def _normal_below(x: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(x))


def _zeros(where: Where, weights: Array, form: Any, expected: float | None, below: float = 0.0) -> Row:
    """The share that the format stores as 0; where it is not `expected` from the law, that of the weights `below`."""
    found, error = mean_over_clusters((weights.astype(form).astype(np.float64) == 0).astype(np.float64))
    if expected is None:
        return Row.compare(ZERO, where, float(np.mean(weights <= below)), found)
    return Row.compare(ZERO, where, expected, found, standard_error=error, slack=_SUM_SCATTER)


def _error(where: Where, stored: Array, exact: Array, v: Array, roundoff: float) -> Row:
    """Of an output of independent values whose weights are rounded: c u, c the rms of a rounding over its bound."""
    relative = _relative(stored, exact, v) / roundoff
    return Row.compare(ERROR, where, ROUNDING_RMS, relative, slack=_OFF * ROUNDING_RMS)


def _relative(stored: Array, exact: Array, v: Array) -> float:
    """‖Σ(p̂ − p)v‖ / ‖Σpv‖ over all rows."""
    outputs = [np.einsum("rn,rnd->rd", weights, v) for weights in (stored - exact, exact)]
    return float(np.linalg.norm(outputs[0]) / np.linalg.norm(outputs[1]))


def _running_sum(form: Any) -> float:
    """1 + 1 + 1 + …, each sum rounded to the format, until it does not change."""
    total = form(0)
    while form(float(total) + 1.0) != total:
        total = form(float(total) + 1.0)
    return float(total)


def told(rows: Sequence[Row]) -> str:
    """What 8 bits do, in a sentence with a space after it; nothing where there are no rows."""
    keys, name, roundoff = KEYS[-1], "float8 E4M3", 1 / 16
    if not pick(rows, ZERO):
        return ""

    def of(quantity: str, stored: str) -> float:
        (row,) = pick(rows, quantity, dtype=name, keys=keys, stored=stored)
        return row.measured

    sums = ", ".join(f"{row.measured:g} in {row.where['dtype']}" for row in pick(rows, LARGEST))
    return (
        f"Emulated {name} stores {100 * of(ZERO, 'normalised'):.0f} % of the normalised weights of standard normal "
        f"scores as 0 at n = {keys} (an error of {roundoff * of(ERROR, 'normalised'):.2f} of the output), "
        f"and {100 * of(ZERO, 'unnormalised'):.0f} % of the unnormalised ones "
        f"({roundoff * of(ERROR, 'unnormalised'):.3f}); a running sum of ones stops at {sums}. "
    )
