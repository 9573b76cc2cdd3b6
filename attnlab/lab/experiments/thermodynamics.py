"""Do the identities of statistical mechanics hold for every row of every backend, at every temperature?

The weights p_j = e^{s_j/τ}/Z of logits s at the temperature τ are a Boltzmann distribution. Its energies are −s,
its inverse temperature is b = 1/τ, and Z is the partition function. Attention takes τ = 1 for the scaled logits, or τ
= √d_k for q·k. The free energy is F = −τ ln Z, and the mean energy U = −⟨s⟩ = −d ln Z/db. The entropy is H = (U −
F)/τ, with dH/dτ = Var_p(s)/τ³ ≥ 0. The heat capacity is dU/dτ = b² Var_p(s).

If a logit changes, the output follows by ∂o/∂s_j = b p_j(v_j − o). If b changes, it follows by the covariance of v and
s. All of these hold for every row. In float64 a right backend misses them only by rounding (allowed: 1e-11) or by the
difference quotient that stands for a derivative (1e-8).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attnlab.lab import observables, theory
from attnlab.lab.experiments import Array, Chart, Experiment, Row, Subject, measured, of
from attnlab.lab.observables import Attend, Observables, derivative, observe, weights_of

#: heads, queries, keys and head dimension for the identities; the logits' standard deviation; the temperatures
_HEADS, _QUERIES, _KEYS, _HEAD_DIM, _STD = 2, 4, 32, 16, 1.5
TEMPERATURES = (0.5, 1.0, 2.0)
#: the number of keys of the row whose weights are added up
_SUM_KEYS = 49_152
SUM = "|Σp − 1| in float32"
CURVE_KEYS = 256
#: temperatures of the curves, in units of the freezing one
_CURVE = (0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.15, 1.3, 1.45, 1.7, 2.2, 3.0, 5.0, 10.0)
#: step h of difference quotients, relative in b, absolute in a logit: a compromise between the errors h⁴ and roundoff/h
_STEP = 2e-3
#: largest violations by rounding, and by difference quotients, in float64 at logits of a few units
ALGEBRAIC, DIFFERENTIAL = 1e-11, 1e-8
FREE, ENERGY, ENTROPY, CAPACITY = "free energy F", "mean energy U", "entropy H", "heat capacity"

#: the name of an identity, its two sides for every row, and the allowed difference between them
Identity = tuple[str, Array, Array, float]


def measure(one: Subject) -> Iterator[Row]:
    """In float64: the largest violation of each identity. In float32: how far a long row's sum of weights is from 1.

    The leading backend also measures F, U, H and the heat capacity against temperature, beside the exact curves.
    """
    if one.dtype == "float32":
        yield from long_sums(one)
        return
    rng = one.rng(900)
    q, k, v = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (_QUERIES, _KEYS, _KEYS))
    for temperature in TEMPERATURES:
        for name, left, right, tolerance in identities(one.attend, q, k, v, _STD / 4, temperature):
            yield one.row(name, {"τ": temperature}, 0.0, np.abs(left - right).max(), slack=tolerance)
    for name, temperature, off in _limits(one.attend, q, k, _STD / 4):
        yield one.row(name, {"τ": temperature}, 0.0, off, slack=ALGEBRAIC)
    if one.lead:
        yield from _curves(one)


def identities(
    attend: Attend, q: Array, k: Array, v: Array, scale: float, temperature: float
) -> Iterator[Identity]:
    """Every identity at one temperature; logits s = scale·q·k of a few units. q, k, v : (batch, heads, length, dim).

    It is assumed that no two keys tie for a row's largest logit.
    """
    logits, b = scale * (q @ k.swapaxes(-1, -2)), 1 / temperature

    def at(b: float) -> Observables:
        """The observables at the inverse temperature b: their mean energy is b⟨s⟩."""
        return observe(attend, q, k, scale=b * scale)

    seen, weights = at(b), weights_of(attend, q, k, scale=b * scale)
    mean, variance = seen.mean_energy / b, observables.energy_variance(attend, q, k, scale=b * scale) / b**2
    for name, function, place, expected in (
        ("d ln Z/db = ⟨s⟩", lambda b: at(b).log_partition, b, mean),
        ("d²ln Z/db² = Var_p(s)", lambda b: at(b).mean_energy / b, b, variance),
        ("dH/dτ = Var_p(s)/τ³", lambda t: at(1 / t).entropy, temperature, variance / temperature**3),
        ("dU/dτ = b² Var_p(s)", lambda t: -t * at(1 / t).mean_energy, temperature, b**2 * variance),
        ("dF/dτ = −H", lambda t: -t * at(1 / t).log_partition, temperature, -seen.entropy),
    ):
        yield name, derivative(function, place, _STEP * place), expected, DIFFERENTIAL
    # the weights, and the observables, compared with their formulas
    boltzmann = np.exp(b * (logits - logits.max(axis=-1, keepdims=True)))
    boltzmann /= boltzmann.sum(axis=-1, keepdims=True)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)
    square, cube = (weights**2).sum(axis=-1), (weights**3).sum(axis=-1)
    low = b * logits.max(axis=-1)
    high = low + math.log(k.shape[2])
    for name, left, right in (
        ("p = exp(bs)/Z", weights, boltzmann),
        ("Σp = 1", weights.sum(axis=-1), np.ones(1)),
        ("H = b(U − F)", seen.log_partition - seen.mean_energy, entropy),
        ("Σp² = Z(2b)/Z(b)²", seen.participation, square),
        ("‖J‖² from Z(b), Z(2b), Z(3b)", seen.jacobian_norm_squared, square - 2 * cube + square**2),
        # an inequality: ln Z is compared with the nearest allowed value
        ("max bs ≤ ln Z ≤ max bs + ln n", seen.log_partition, seen.log_partition.clip(low, high)),
    ):
        yield name, left, right, ALGEBRAIC
    yield from _responses(attend, q, k, v, weights, logits, scale, b)


def _responses(
    attend: Attend, q: Array, k: Array, v: Array, weights: Array, logits: Array, scale: float, b: float
) -> Iterator[Identity]:
    """Fluctuation and dissipation: the response to a change is a covariance."""
    exact = b * theory.output_response(weights, v[..., None, :, :])  # (batch, heads, n_q, n_k, value_dim)
    keys = range(0, k.shape[2], max(1, k.shape[2] // 4))
    # a change of a logit s by δ changes bs by bδ
    moved = [b * observables.response_to_logit(attend, q, k, v, j, scale=b * scale, step=_STEP) for j in keys]
    yield "∂o/∂s_j = b p_j (v_j − o)", np.stack(moved, axis=-2), exact[..., list(keys), :], DIFFERENTIAL

    covariance = (weights * logits) @ v - (weights * logits).sum(axis=-1, keepdims=True) * (weights @ v)
    slope = derivative(lambda b: attend(q, k, v, causal=False, scale=b * scale), b, _STEP * b)
    yield "do/db = Cov_p(v, s)", slope, covariance, DIFFERENTIAL


def _limits(attend: Attend, q: Array, k: Array, scale: float) -> Iterator[tuple[str, float, float]]:
    """τ → 0: all weight is on the largest logits, in equal parts. τ → ∞: H = ln n. Each with the τ that is used."""
    logits = scale * (q @ k.swapaxes(-1, -2))
    top = np.sort(logits, axis=-1)
    # so cold that in every row the second key has at most e^{−40} of the first key's weight
    cold = float((top[..., -1] - top[..., -2]).min()) / 40
    twice = np.concatenate([k, k], axis=2)  # every key once more: each maximum is attained twice
    frozen = weights_of(attend, q, twice, scale=scale / cold)
    expected = 0.5 * (np.concatenate([logits, logits], axis=-1) == logits.max(axis=-1, keepdims=True))
    yield "τ → 0: uniform on the largest", cold, np.abs(frozen - expected).max()
    hot = observe(attend, q, k, scale=scale * 1e-9).entropy
    yield "τ → ∞: H = ln n", 1e9, np.abs(hot - math.log(k.shape[2])).max()


def long_sums(one: Subject) -> Iterator[Row]:
    """How far the weights of a long row are from a sum of 1, compared with a bound for roundings. All values are 1.

    The output is a sum of n weights over another sum of them. Each sum has a relative error of at most γ_{n−1} in any
    order of summation (Higham 2002, section 4.2), and each weight is rounded: together at most γ_{2n}. √n·u is no
    bound, because the roundings in a sum of equal terms depend on each other.
    """
    rng, roundoff = one.rng(960), theory.float_format(one.dtype).unit_roundoff
    k = rng.standard_normal((1, 1, _SUM_KEYS, 8), dtype=np.float32)
    bound = 2 * _SUM_KEYS * roundoff / (1 - 2 * _SUM_KEYS * roundoff)
    for logits, length in (("equal", 0.0), ("normal", 1.0)):
        q = np.full((1, 1, 2, 8), length / math.sqrt(8), np.float32)
        sums = one.attend(q, k, np.ones_like(k), causal=False, scale=1.0).astype(np.float64)
        off, where = float(np.abs(sums - 1).max()), {"keys": _SUM_KEYS, "logits": logits}
        yield one.row(SUM, where, bound, off, relation="≤")
        yield one.row("|Σp − 1| / (√n·u) in float32", where, None, off / (math.sqrt(_SUM_KEYS) * roundoff))


def _curves(one: Subject) -> Iterator[Row]:
    """F, U, H and b² Var_p(s) of rows of n independent N(0, 1) logits, around the freezing temperature."""
    critical = theory.critical_beta(CURVE_KEYS)
    for number, ratio in enumerate(_CURVE):
        b, rng = critical / ratio, one.rng(950, number)
        q, k = (rng.standard_normal((1, 48, n, _HEAD_DIM)) for n in (8, CURVE_KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        seen, exact = observe(one.attend, q, k, scale=b), theory.random_energy(CURVE_KEYS, b)
        where = {"T/T_c": ratio, "keys": CURVE_KEYS}
        yield one.mean(FREE, where, -seen.log_partition[0] / b, -exact.log_partition / b)
        yield one.mean(ENERGY, where, -seen.mean_energy[0] / b, (exact.entropy - exact.log_partition) / b)
        yield one.mean(ENTROPY, where, seen.entropy[0], exact.entropy)
        capacity = observables.energy_variance(one.attend, q, k, scale=b)[0]  # of the logits bs: b² Var_p(s)
        # b² d⟨s⟩/db, where ⟨s⟩ = b(1 − E Σp²) by parts, from the exact quadrature: relative error about 1e-5
        slope = derivative(
            lambda b: np.array(b * (1 - theory.random_energy(CURVE_KEYS, b).participation)), b, 0.02 * b
        )
        yield one.mean(CAPACITY, where, capacity, b**2 * float(slope))


EXPERIMENT = Experiment(
    about=__doc__,
    title="The softmax as thermodynamics",
    measure=measure,
    dtypes=("float64", "float32"),
    sentences=(
        "At τ = ½, 1 and 2 the largest violation of an identity with a derivative is {slope:.1e}, of p = "
        "exp(bs)/Z {plain:.1e}.",
        "Over 49,152 keys in float32 the sum of the weights is off 1 by up to {sum:.1e}.",
    ),
    numbers={
        "slope": lambda rows: max((x.measured for x in rows if x.slack == DIFFERENTIAL), default=math.nan),
        "plain": measured("p = exp(bs)/Z", max),
        "sum": measured(SUM, max),
    },
    lesson="F, U, H and Σp² can be read from the outputs of any backend, without the n × n matrix; ‖J‖ in "
    "float64, as in float32 cancellation hides small values. The experiments on saturation (in float32) "
    "and on gradients (in float64) measure fused kernels that way.",
    charts=(
        Chart(
            title="Once frozen, the free energy is nearly flat",
            x="T/T_c",
            x_label=f"temperature / freezing temperature, T/T_c, at n = {CURVE_KEYS}",
            y="energy, in standard deviations of s",
            lines={"U = −⟨s⟩": of(ENERGY), "F = −τ ln Z": of(FREE)},
            marks={"T_c": 1.0},
        ),
        Chart(
            title=f"Heat capacity peaks near 1.3 T_c at n = {CURVE_KEYS}",
            x="T/T_c",
            x_label=f"temperature / freezing temperature, T/T_c, at n = {CURVE_KEYS}",
            y="heat capacity b² Var_p(s)",
            lines={"b² Var_p(s)": of(CAPACITY)},
            marks={"T_c": 1.0},
        ),
        Chart(
            title="Every identity holds up to numerical error",
            by="quantity",
            y="largest violation over all rows (≤ 1e-17: left edge)",
            lines={"": of(..., τ=...)},
            limits=(1e-17, 1e-7),
        ),
    ),
)
