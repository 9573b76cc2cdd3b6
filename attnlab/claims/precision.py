"""What finite numbers do to the formula: overflow, and the dot product as a length times a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.check import Check, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.numerics.black_box import Attend
from attnlab.theory import overflow_threshold, underflow_threshold, unit_roundoff

THEME = Theme("Precision")


def unshifted(scores: NDArray[Any]) -> NDArray[Any]:
    """exp(s)/Σexp(s), as tutorials write it, in the number format of `scores`."""
    boltzmann = np.exp(scores)
    return np.asarray(boltzmann / boltzmann.sum(axis=-1, keepdims=True))


def shifted(scores: NDArray[Any]) -> NDArray[Any]:
    """The same with the largest score taken off first."""
    return unshifted(scores - scores.max(axis=-1, keepdims=True))


#: by number format, a logit just inside what exp can take, and one just outside
_EDGES = {
    "float64": ((709.0, 710.0), (-745.0, -750.0)),
    "float32": ((88.0, 89.0), (-103.0, -105.0)),
    "float16": ((11.0, 11.1), (-17.0, -18.0)),
}


@THEME.claim(
    "plain-exponentials",
    "S1:54",
    kind="precision",
    says="The softmax can be computed as exp(s)/Σ exp(s).",
    truth="That overflows, and gives NaN from a logit of ln(max) on: 709.8 in float64, 88.7 in "
    "float32, 11.1 in float16; and 0/0 where all logits are so low that exp underflows. "
    "Subtracting the row's largest logit first changes nothing else and cures both.",
    reference="Blanchard, Higham, Higham 2021; Milakov, Gimelshein 2018",
)
def plain_exponentials(lab: Laboratory) -> Sequence[Check]:
    as_written: Callable[[NDArray[Any]], NDArray[Any]] = lab.part("softmax", unshifted)
    checks = []
    for dtype, pairs in _EDGES.items():
        limits = overflow_threshold(dtype), -underflow_threshold(dtype)
        for (inside, outside), limit in zip(pairs, limits, strict=True):
            where = f"{dtype}, s = {outside:g}; exp's limit is {limit:.2f}"
            checks += [
                control("NaN in a row just inside the limit", _nans(as_written, inside, dtype), "=", 0),
                claimed("NaN in a row just outside", _nans(as_written, outside, dtype), "=", 0, where=where),
                right("NaN with the maximum taken off", _nans(shifted, outside, dtype), "=", 0, where=where),
            ]
    for logit in (710.0, -750.0):
        worst = lab.worst(partial(_backend_nans, logit=logit))
        checks.append(
            right("NaN from a backend", worst.figure, "=", 0, where=f"float64, s = {logit:g}; {worst.where}")
        )
    return checks


def _nans(function: Callable[[NDArray[Any]], NDArray[Any]], logit: float, dtype: str) -> int:
    """Of a row of one key, so that the sum overflows where exp does and not before."""
    with np.errstate(all="ignore"):
        return int(np.isnan(function(np.full((1, 1), logit, dtype))).sum())


def _backend_nans(attend: Attend, *, logit: float) -> float:
    q, k = np.zeros((1, 1, 2, 8)), np.zeros((1, 1, 4, 8))
    q[..., 0], k[..., 0] = 1, logit
    return float(np.isnan(attend(q, k, np.ones((1, 1, 4, 8)), causal=False, scale=1.0)).sum())


@THEME.claim(
    "dot-product-cosine",
    "S4:168",
    kind="identity",
    says="q·k = ‖q‖‖k‖cos θ.",
    truth="An identity. Computed, the two sides differ by at most γ_{d+2}‖q‖‖k‖, γ_m = mu/(1 − mu).",
    reference="Higham 2002, §3.1",
)
def dot_product_cosine(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for head_dim in (4, 64, 1024):
        q, k = (lab.normal(256, head_dim, stream=head_dim + i).astype(np.float32) for i in (0, 1))
        dot: Array = lab.part("dot", _dots)(q, k)
        lengths = [np.linalg.norm(x.astype(np.float64), axis=-1) for x in (q, k)]
        sides = lengths[0] * lengths[1]
        steps = (head_dim + 2) * unit_roundoff("float32")
        worst = float((np.abs(dot - sides * np.cos(_angle(q, k))) / sides).max())
        checks.append(
            claimed(
                "largest |q·k − ‖q‖‖k‖cos θ|/‖q‖‖k‖",
                worst,
                "≤",
                steps / (1 - steps),
                where=f"d = {head_dim}, float32, 256 pairs",
            )
        )
    return checks


def _dots(q: NDArray[Any], k: NDArray[Any]) -> Array:
    return np.asarray([np.dot(one, other) for one, other in zip(q, k, strict=True)], np.float64)


def _angle(q: NDArray[Any], k: NDArray[Any]) -> Array:
    """The angle without a dot product, 2 atan(‖u − v‖/‖u + v‖) of the unit vectors (Kahan), in float64."""
    u, v = (
        x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q.astype(np.float64), k.astype(np.float64))
    )
    angle = 2 * np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    return np.asarray(np.clip(angle, 0, math.pi))
