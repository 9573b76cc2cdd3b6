"""The identities of a Boltzmann distribution, tried through every backend.

With p = e^{bs}/Z all identities hold for every row, whatever q and k, so that a backend which misses one is wrong,
whatever its inputs were. They are tried at b = 1, where s are the logits, of standard deviation β, that attention has.
Derivatives are differences of the backend's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.figures import BLUE, GREEN, ORANGE, RED, backend_styles, entitle, legend, new_figure, note
from attnlab.lab import panels, theory
from attnlab.lab.finding import Array, Experiment, Finding, Row, Shown, pick
from attnlab.lab.observables import (
    Attend,
    Observables,
    derivative,
    energy_variance,
    observe,
    response_to_logit,
    weights_of,
)
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: heads, queries, keys, head dimension of the identities; β is the logits' standard deviation
_HEADS, _QUERIES, _KEYS, _HEAD_DIM = 4, 8, 48, 16
BETAS = (0.5, 2.0)
#: the row whose weights are added up
SUM_KEYS, SUM_DTYPE = 49_152, "float32"
SUM, SUM_SIZE = "|Σp − 1| in float32", "|Σp − 1| / √n·u in float32"
CURVE_KEYS = 256
#: β of the curves, in units of the freezing one
CURVE = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.25, 1.5, 1.8, 2.2, 2.8)
_AT, _BETA = "beta / critical", "standard deviation of the logits, β / β_c"
#: steps of differences, relative in b and absolute in a logit: error h⁴ against roundoff/h
_STEP = 2e-3
#: largest violations that rounding and differences can make in float64 at logits of a few units
ALGEBRAIC, DIFFERENTIAL = 1e-11, 1e-8
#: what rounding can do to nothing at all: violations below are drawn here
_FLOOR = 1e-17

#: an identity, the largest violation of it over all rows, and how far rounding could take it
Violation = tuple[str, float, float]


def measure(survey: Survey) -> None:
    """The largest violation of each identity of a Boltzmann distribution, through each backend in float64.

    Prediction 0, standard error 0; a row passes within what rounding (1e-11) or a difference quotient (1e-8) can do.
    And ln Z, energy, entropy and heat capacity against β, on the exact curves of the random energy model.
    """
    survey.each(_identities)
    survey.each(long_sums, dtype=SUM_DTYPE)
    survey.one(_curves)


def _identities(one: OpenBackend, seed: int) -> Iterator[Row]:
    for number, beta in enumerate(BETAS):
        rng = generator(seed, 900, number)
        q, k, v = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (_QUERIES, _KEYS, _KEYS))
        for identity, largest, tolerance in violations(one.attend, q, k, v, beta / np.sqrt(_HEAD_DIM)):
            yield one.row(identity, {"beta": beta}, 0.0, largest, slack=tolerance)


def violations(attend: Attend, q: Array, k: Array, v: Array, scale: float) -> Iterator[Violation]:
    """Every identity at one set of inputs in float64; logits s = scale·q·k of a few units.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). v : (batch, heads, n_k, value_dim). Inputs where two
    keys tie for a row's largest logit are taken as distinct.
    """
    seen, logits = observe(attend, q, k, scale=scale), scale * (q @ k.swapaxes(-1, -2))
    weights, spread = (of(attend, q, k, scale=scale) for of in (weights_of, energy_variance))

    def at(b: float) -> Observables:
        """With the logits bs, which a scale b times as large gives."""
        return observe(attend, q, k, scale=b * scale)

    for identity, function, expected in (
        ("d ln Z/db = ⟨s⟩", lambda b: at(b).log_partition, seen.mean_energy),
        # observe gives b⟨s⟩
        ("d²ln Z/db² = Var_p(s)", lambda b: at(b).mean_energy / b, spread),
        ("dH/db = −b Var_p(s)", lambda b: at(b).entropy, -spread),
        ("dH/dτ = Var_p(s)/τ³", lambda temperature: at(1 / temperature).entropy, spread),
    ):
        yield identity, _worst(derivative(function, 1.0, _STEP), expected), DIFFERENTIAL
    yield from _sums(seen, weights, logits)
    yield from _responses(attend, q, k, v, weights, logits, scale)
    # inequalities: by how much the wrong side is reached
    for identity, bounds in (
        ("max s ≤ ln Z ≤ max s + ln n", theory.scaled_log_partition_bounds(logits, 1.0)),
        ("ln n + s̄ ≤ ln Z ≤ ln n + s̄ + Δ²/8", theory.log_partition_bounds(logits)),
    ):
        over = np.maximum(bounds.lower - seen.log_partition, seen.log_partition - bounds.upper)
        yield identity, max(0.0, float(over.max())), ALGEBRAIC
    # two logits, −a/2 and a/2, moved by a and −a: no pair of distributions moves further for so small a change
    a, unit = 1.3, np.ones((1, 1, 1, 1))
    both = (weights_of(attend, unit, np.array([[[[low], [-low]]]]), scale=1.0) for low in (-a / 2, a / 2))
    distance = 0.5 * float(np.abs(np.subtract(*both)).sum())
    yield "TV = tanh(‖δ‖/2), attained", abs(distance - math.tanh(a / 2)), ALGEBRAIC
    yield from _limits(attend, q, k, logits, scale)


def _worst(left: Array, right: Array) -> float:
    return float(np.abs(left - right).max())


def _sums(seen: Observables, weights: Array, logits: Array) -> Iterator[Violation]:
    """What the observables say of the weights, against the weights."""
    boltzmann = np.exp(logits - logits.max(axis=-1, keepdims=True))
    boltzmann /= boltzmann.sum(axis=-1, keepdims=True)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(axis=-1)
    square, cube = (weights**2).sum(axis=-1), (weights**3).sum(axis=-1)
    for identity, left, right in (
        ("p = e^s / Z", weights, boltzmann),
        ("Σp = 1", weights.sum(axis=-1), np.ones(1)),
        ("H = ln Z − b⟨s⟩", seen.log_partition - seen.mean_energy, entropy),
        ("Σp² = Z(2b)/Z(b)²", seen.participation, square),
        ("‖J‖² from Z(b), Z(2b), Z(3b)", seen.jacobian_norm_squared, square - 2 * cube + square**2),
    ):
        yield identity, _worst(left, right), ALGEBRAIC


def _responses(
    attend: Attend, q: Array, k: Array, v: Array, weights: Array, logits: Array, scale: float
) -> Iterator[Violation]:
    """Fluctuation and dissipation: the answer to a change is a covariance."""
    exact = theory.output_response(weights, v[..., None, :, :])  # (batch, heads, n_q, n_k, value_dim)
    worst = 0.0
    for key in range(0, k.shape[2], max(1, k.shape[2] // 4)):
        moved = response_to_logit(attend, q, k, v, key, scale=scale, step=_STEP)
        worst = max(worst, _worst(moved, exact[..., key, :]))
    yield "∂o/∂s_j = b p_j (v_j − o)", worst, DIFFERENTIAL

    def output(b: float) -> Array:
        return attend(q, k, v, causal=False, scale=b * scale).astype(np.float64)

    product = (weights * logits) @ v - (weights * logits).sum(axis=-1, keepdims=True) * (weights @ v)
    yield "do/db = Cov_p(v, s)", _worst(derivative(output, 1.0, _STEP), product), DIFFERENTIAL


def _limits(attend: Attend, q: Array, k: Array, logits: Array, scale: float) -> Iterator[Violation]:
    """τ → 0: all weight on the largest logit, shared among ties. τ → ∞: H = ln n."""
    top = np.sort(logits, axis=-1)
    # cold enough that the second key of every row has e^{−40} of the first one's weight
    cold = 40.0 / float((top[..., -1] - top[..., -2]).min())
    twice = np.concatenate([k, k], axis=2)  # every key once more: each maximum is attained twice
    frozen = weights_of(attend, q, twice, scale=scale * cold)
    expected = 0.5 * (np.concatenate([logits, logits], axis=-1) == logits.max(axis=-1, keepdims=True))
    yield "τ → 0: uniform on the largest", _worst(frozen, expected), ALGEBRAIC
    hot = observe(attend, q, k, scale=scale * 1e-9)
    yield "τ → ∞: H = ln n", _worst(hot.entropy, np.full(1, math.log(k.shape[2]))), ALGEBRAIC


def long_sums(one: OpenBackend, seed: int) -> Iterator[Row]:
    """How far the weights of a long row are from adding up to 1, with ones for values: against what roundings can do.

    The output is a sum of n weights over another sum of them, each with a relative error of at most γ_{n−1} in whatever
    order it is taken (Higham 2002, section 4.2), and each weight is rounded: together at most γ_{2n}. Independent
    roundings would add up to about √n·u, which is no bound: those of equal terms are not independent.
    """
    rng, roundoff = generator(seed, 960), theory.unit_roundoff(SUM_DTYPE)
    k = rng.standard_normal((1, 1, SUM_KEYS, 8), dtype=np.float32)
    bound = 2 * SUM_KEYS * roundoff / (1 - 2 * SUM_KEYS * roundoff)
    for logits, length in (("equal", 0.0), ("normal", 1.0)):
        q = np.full((1, 1, 2, 8), length / math.sqrt(8), np.float32)
        sums = one.attend(q, k, np.ones_like(k), causal=False, scale=1.0).astype(np.float64)
        off, where = float(np.abs(sums - 1).max()), {"keys": SUM_KEYS, "logits": logits}
        yield one.row(SUM, where, bound, off, relation="≤")
        yield one.row(SUM_SIZE, where, None, off / (math.sqrt(SUM_KEYS) * roundoff))


def _curves(one: OpenBackend, seed: int) -> Iterator[Row]:
    """ln Z, ⟨s⟩, H and Var_p(s) of rows of iid N(0, β²) logits s, against the random energy model."""
    for number, ratio in enumerate(CURVE):
        beta = ratio * theory.critical_beta(CURVE_KEYS)
        rng = generator(seed, 950, number)
        q, k = (rng.standard_normal((1, 48, n, _HEAD_DIM)) for n in (_QUERIES, CURVE_KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        seen, exact = observe(one.attend, q, k, scale=beta), theory.random_energy(CURVE_KEYS, beta)
        where = {_AT: ratio, "keys": CURVE_KEYS}
        for quantity in ("log_partition", "mean_energy", "entropy"):
            yield one.mean(quantity, where, getattr(seen, quantity)[0], getattr(exact, quantity))
        capacity = energy_variance(one.attend, q, k, scale=beta)
        yield one.mean("heat_capacity", where, capacity[0], exact_heat_capacity(CURVE_KEYS, beta))


def exact_heat_capacity(keys: int, beta: float) -> float:
    """E Var_p(βx), x the unit logits: β² d/dβ[β(1 − E Σp²)], as ⟨x⟩ = β(1 − E Σp²) by parts.

    The derivative by a central difference of the exact quadrature, relative error about 1e-5.
    """

    def energy(b: float) -> Array:
        return np.array(b * (1 - theory.random_energy(keys, b).participation))

    return beta**2 * float(derivative(energy, beta, 0.02 * beta))


def conclusion(rows: Sequence[Row]) -> str:
    """The largest violation of any identity, and how far the weights of the longest row are from adding up to 1."""
    checked = [row for row in rows if "beta" in row.where]
    if not checked:
        return "No backend could be measured."
    through = len({row.where["backend"] for row in checked})
    identities = len({row.quantity for row in checked})
    largest = max(checked, key=lambda row: row.measured)
    sums = ""
    if pick(rows, SUM):
        worst, most = (max(pick(rows, name), key=lambda row: row.measured) for name in (SUM, SUM_SIZE))
        sums = (
            f"Over {SUM_KEYS} keys in float32 the weights add up to 1 within {worst.measured:.1e} "
            f"({worst.where['backend']}, {worst.where['logits']} logits; bound {worst.predicted:.1e}), at most "
            f"{most.measured:.2f} times √n·u. "
        )
    return (
        f"Of {identities} identities of a Boltzmann distribution, tried through {through} backends, the largest "
        f"violation is {largest.measured:.1e} ({largest.quantity}, {largest.where['backend']}). {sums}"
        f"{agreement(rows, 'theory')}."
    )


def draw(finding: Finding) -> Figure:
    """ln Z, energy, entropy and heat capacity against β, and the largest violation of each identity."""
    figure, (potentials, capacity, identities) = new_figure(
        3, 1, width=15.0, height=5.0, width_ratios=[1, 1, 1.25]
    )
    _potentials(potentials, finding.rows)
    _capacity(capacity, pick(finding.rows, "heat_capacity"))
    _violations(identities, [row for row in finding.rows if "beta" in row.where])
    return figure


def _potentials(panel: Axes, rows: Sequence[Row]) -> None:
    y, unit = f"ln Z, ⟨s⟩ and H, over ln n, n = {CURVE_KEYS}", math.log(CURVE_KEYS)
    entitle(panel, "Above β_c ln Z grows linearly and H is small", _BETA, y)
    for quantity, label, colour, offset in (
        ("log_partition", "ln Z", BLUE, (-8, 9)),
        ("mean_energy", "⟨s⟩ = d ln Z/db", ORANGE, (90, -30)),
        ("entropy", "H", GREEN, (-8, 9)),
    ):
        if mine := pick(rows, quantity):
            panels.compared(panel, mine, _AT, colour, unit, smooth=True)
            at = float(mine[-3].where[_AT]), mine[-3].predicted / unit
            look: dict[str, Any] = {"color": colour, "fontsize": 10, "ha": "right"}
            panel.annotate(label, at, offset, textcoords="offset points", **look)
    panels.boundary(panel, 1.0)


def _capacity(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "The heat capacity peaks near freezing", _BETA, "Var_p(s)")
    if rows:
        panels.compared(panel, rows, _AT, RED, smooth=True)
        panels.boundary(panel, 1.0)
        last, top = float(rows[-1].where[_AT]), max(row.measured for row in rows)
        text = f"exact, n = {rows[0].where['keys']}\nbars: 5 standard errors"
        note(panel, last, top, text, RED, ha="right", va="top")


def _violations(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "How exactly the identities hold", "largest violation over all rows", "")
    names = list(dict.fromkeys(row.quantity for row in rows))
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    for index, (backend, style) in enumerate(styles.items()):
        worst = [max(row.measured for row in pick(rows, name, backend=backend)) for name in names]
        heights = np.arange(len(names)) + 0.09 * (index - (len(styles) - 1) / 2)
        look: dict[str, Any] = {"color": style["color"], "markersize": 4, "linestyle": ""}
        panel.plot(np.maximum(worst, _FLOOR), heights, style["marker"], label=backend, **look)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(_FLOOR / 3, 1e-7)
    powers = range(-15, -6, 2)
    panel.set_xticks([_FLOOR, *(10.0**p for p in powers)], ["0", *(f"$10^{{{p}}}$" for p in powers)])
    legend(panel, fontsize=8, loc="upper right")


EXPERIMENT = Experiment(
    title="The softmax as thermodynamics",
    question="Do the identities of statistical mechanics hold for every row of every backend?",
    theory="The weights p_j = e^{bs_j}/Z are a Boltzmann distribution: energies −s_j, inverse temperature b = 1/τ, Z "
    "the partition function. Of logits s attention takes b = 1; of products s = q·k it takes b = 1/√d_k, so that "
    "√d_k is a temperature. Then d ln Z/db = ⟨s⟩, the mean under p; d² ln Z/db² = Var_p(s); the entropy is H = ln Z − "
    "b⟨s⟩ and falls as dH/db = −b Var_p(s); and the output o answers by ∂o/∂s_j = b p_j(v_j − o). These hold for "
    "every row. A backend can miss them only by rounding (allowed: 1e-11) or by the difference quotient that stands "
    "for a derivative (1e-8).",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Left and middle: ln Z, ⟨s⟩, entropy and heat capacity Var_p(s) of rows of normal logits s; lines are "
    "exact, bars five standard errors, the dashed line the freezing point of infinitely many keys. Right: "
    "the largest violation of each identity through each backend; a violation of exactly 0 is drawn at the "
    "left edge.",
    lesson="ln Z, ⟨s⟩, H, Σp² and ‖J‖ can be read from the outputs of any backend, without the n × n matrix. "
    "The experiments on this page measure fused kernels that way.",
    shown=(
        Shown("d ln Z/db = ⟨s⟩", {"beta": 2.0}),
        Shown("d²ln Z/db² = Var_p(s)", {"beta": 2.0}),
        Shown("H = ln Z − b⟨s⟩", {"beta": 2.0}),
        Shown("dH/db = −b Var_p(s)", {"beta": 2.0}),
        Shown("Σp² = Z(2b)/Z(b)²", {"beta": 2.0}),
        Shown("∂o/∂s_j = b p_j (v_j − o)", {"beta": 2.0}),
        Shown("do/db = Cov_p(v, s)", {"beta": 2.0}),
        Shown("|Σp − 1| in float32", every=True),
        Shown("|Σp − 1| / √n·u in float32", every=True),
        Shown("log_partition", {"beta / critical": 0.75}),
        Shown("entropy", {"beta / critical": 0.75}),
        Shown("heat_capacity", {"beta / critical": 0.75}),
    ),
)
