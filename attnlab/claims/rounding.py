"""What rounding may do to an answer, so that *equal* and *different* mean something."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy.evidence import allowance
from attnlab.accuracy.reference import refer
from attnlab.claims.laboratory import Array
from attnlab.contract.problem import Problem
from attnlab.numerics.black_box import Attend


def distance(left: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    """‖left − right‖/‖right‖, Frobenius."""
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def allowed(
    q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = False, times: float = 1.0
) -> float:
    """The relative error that an honest answer to these arrays may have, `times` as much for several answers.

    Shapes (batch, heads, length, dim); the budget of `attnlab.theory.error_budget` with the gate's margin.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    exact = refer(Problem.of(q, k, v, causal=causal, scale=factor))["output"]
    return times * allowance(exact.lenient)


def error_in_budgets(
    attend: Attend, q: Array, k: Array, v: Array, *, scale: float | None = None, causal: bool = False
) -> float:
    """Relative error of `attend` against the formula in float64, over the largest that an honest one may have."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    exact = refer(Problem.of(q, k, v, causal=causal, scale=factor))["output"]
    answer = attend(q, k, v, causal=causal, scale=factor)
    return distance(answer, exact.output) / allowance(exact.lenient)


def weights_of(attend: Attend, q: Array, k: Array, *, scale: float, causal: bool = False) -> Array:
    """The attention weights, (batch, heads, n_q, n_k), which any backend shows to V = 1."""
    keys = k.shape[2]
    unit = np.broadcast_to(np.eye(keys, dtype=k.dtype), (*k.shape[:2], keys, keys)).copy()
    return np.asarray(attend(q, k, unit, causal=causal, scale=scale), np.float64)


def softmax(scores: Array) -> Array:
    """exp(s − max s)/Σexp(s − max s) along the last axis."""
    boltzmann = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(boltzmann / boltzmann.sum(axis=-1, keepdims=True))
