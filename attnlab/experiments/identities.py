"""The identities of a Boltzmann distribution, each as the largest violation found in a backend's own outputs.

With energies −s and inverse temperature β the weights p = softmax(βs) are a Boltzmann distribution exactly, so that
all of these hold for every row, whatever q and k. Derivatives are differences of the backend's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.black_box import Attend
from attnlab.experiments.observables import Observables, observe
from attnlab.experiments.responses import derivative, energy_variance, response_to_logit, weights_of
from attnlab.theory import log_partition_bounds, output_response, scaled_log_partition_bounds

Array = NDArray[np.float64]

#: steps of differences, relative in β and absolute in a logit: error h⁴ against roundoff/h
_STEP = 2e-3
#: largest violations that rounding and differences can make in float64 at logits of a few units
ALGEBRAIC, DIFFERENTIAL = 1e-11, 1e-8


@dataclass(frozen=True)
class Violation:
    """How far a backend is from one identity at most, over all rows, and how far rounding could take it."""

    identity: str
    largest: float
    tolerance: float


def violations(attend: Attend, q: Array, k: Array, v: Array, scale: float) -> Iterator[Violation]:
    """Every identity at one set of inputs in float64; logits s = scale·q·k of a few units.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). v : (batch, heads, n_k, value_dim). Inputs where two
    keys tie for a row's largest logit are taken as distinct.
    """
    seen = observe(attend, q, k, scale=scale)
    weights = weights_of(attend, q, k, scale=scale)
    spread = energy_variance(attend, q, k, scale=scale)
    logits = scale * (q @ k.swapaxes(-1, -2))
    yield from _derivatives(attend, q, k, seen, spread, scale)
    yield from _sums(seen, weights, logits)
    yield from _responses(attend, q, k, v, weights, logits, scale)
    yield from _bounds(attend, q, k, seen, logits, scale)
    yield from _limits(attend, q, k, logits, scale)


def _worst(left: Array, right: Array) -> float:
    return float(np.abs(left - right).max())


def _derivatives(
    attend: Attend, q: Array, k: Array, seen: Observables, spread: Array, scale: float
) -> Iterator[Violation]:
    """In β, with s at β = 1: βs is what a scale β times as large gives."""

    def at(beta: float) -> Observables:
        return observe(attend, q, k, scale=beta * scale)

    slope = derivative(lambda beta: at(beta).log_partition, 1.0, _STEP)
    yield Violation("d ln Z/dβ = ⟨s⟩", _worst(slope, seen.mean_energy), DIFFERENTIAL)
    # observe gives β⟨s⟩, so that ⟨s⟩ at another β is that over β
    slope = derivative(lambda beta: at(beta).mean_energy / beta, 1.0, _STEP)
    yield Violation("d²ln Z/dβ² = Var_p(s)", _worst(slope, spread), DIFFERENTIAL)
    slope = derivative(lambda beta: at(beta).entropy, 1.0, _STEP)
    yield Violation("dH/dβ = −β Var_p(s)", _worst(slope, -spread), DIFFERENTIAL)
    slope = derivative(lambda temperature: at(1 / temperature).entropy, 1.0, _STEP)
    yield Violation("dH/dτ = Var_p(s)/τ³", _worst(slope, spread), DIFFERENTIAL)


def _sums(seen: Observables, weights: Array, logits: Array) -> Iterator[Violation]:
    """What the observables say of the weights, against the weights."""
    boltzmann = np.exp(logits - logits.max(axis=-1, keepdims=True))
    boltzmann /= boltzmann.sum(axis=-1, keepdims=True)
    yield Violation("p = e^s / Z", _worst(weights, boltzmann), ALGEBRAIC)
    positive = np.where(weights > 0, weights, 1.0)
    yield Violation("Σp = 1", _worst(weights.sum(axis=-1), np.ones(1)), ALGEBRAIC)
    entropy = -(weights * np.log(positive)).sum(axis=-1)
    yield Violation("H = ln Z − β⟨s⟩", _worst(seen.log_partition - seen.mean_energy, entropy), ALGEBRAIC)
    yield Violation("Σp² = Z(2β)/Z(β)²", _worst(seen.participation, (weights**2).sum(axis=-1)), ALGEBRAIC)
    square, cube = (weights**2).sum(axis=-1), (weights**3).sum(axis=-1)
    direct = square - 2 * cube + square**2
    yield Violation("‖J‖² from Z(β), Z(2β), Z(3β)", _worst(seen.jacobian_norm_squared, direct), ALGEBRAIC)


def _responses(
    attend: Attend, q: Array, k: Array, v: Array, weights: Array, logits: Array, scale: float
) -> Iterator[Violation]:
    """Fluctuation and dissipation: the answer to a change is a covariance."""
    exact = output_response(weights, v[..., None, :, :])  # (batch, heads, n_q, n_k, value_dim)
    worst = 0.0
    for key in range(0, k.shape[2], max(1, k.shape[2] // 4)):
        moved = response_to_logit(attend, q, k, v, key, scale=scale, step=_STEP)
        worst = max(worst, _worst(moved, exact[..., key, :]))
    yield Violation("∂o/∂s_j = p_j (v_j − o)", worst, DIFFERENTIAL)

    def output(beta: float) -> Array:
        return attend(q, k, v, causal=False, scale=beta * scale).astype(np.float64)

    slope = derivative(output, 1.0, _STEP)
    product = (weights * logits) @ v - (weights * logits).sum(axis=-1, keepdims=True) * (weights @ v)
    yield Violation("do/dβ = Cov_p(v, s)", _worst(slope, product), DIFFERENTIAL)


def _bounds(
    attend: Attend, q: Array, k: Array, seen: Observables, logits: Array, scale: float
) -> Iterator[Violation]:
    """Inequalities: by how much the wrong side is reached. And one bound that is attained."""
    for name, bounds in (
        ("max s ≤ ln Z ≤ max s + ln n", scaled_log_partition_bounds(logits, 1.0)),
        ("ln n + s̄ ≤ ln Z ≤ ln n + s̄ + Δ²/8", log_partition_bounds(logits)),
    ):
        over = np.maximum(bounds.lower - seen.log_partition, seen.log_partition - bounds.upper)
        yield Violation(name, max(0.0, float(over.max())), ALGEBRAIC)
    # two logits, −a/2 and a/2, moved by a and −a: no pair of distributions moves further for so small a change
    a = 1.3
    one = np.ones((1, 1, 1, 1))
    before, after = (
        weights_of(attend, one, np.array([[[[low], [-low]]]]), scale=1.0) for low in (-a / 2, a / 2)
    )
    distance = 0.5 * float(np.abs(after - before).sum())
    yield Violation("TV = tanh(‖δ‖/2), attained", abs(distance - math.tanh(a / 2)), ALGEBRAIC)


def _limits(attend: Attend, q: Array, k: Array, logits: Array, scale: float) -> Iterator[Violation]:
    """τ → 0: all weight on the largest logit, shared among ties. τ → ∞: H = ln n."""
    top = np.sort(logits, axis=-1)
    # cold enough that the second key of every row has e^{−40} of the first one's weight
    cold = 40.0 / float((top[..., -1] - top[..., -2]).min())
    twice = np.concatenate([k, k], axis=2)  # every key once more: each maximum is attained twice
    frozen = weights_of(attend, q, twice, scale=scale * cold)
    expected = 0.5 * (np.concatenate([logits, logits], axis=-1) == logits.max(axis=-1, keepdims=True))
    yield Violation("τ → 0: uniform on the largest", _worst(frozen, expected), ALGEBRAIC)
    hot = observe(attend, q, k, scale=scale * 1e-9)
    yield Violation("τ → ∞: H = ln n", _worst(hot.entropy, np.full(1, math.log(k.shape[2]))), ALGEBRAIC)
