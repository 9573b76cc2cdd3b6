"""Is the softmax a Boltzmann distribution, in every backend, to the last digits? And what is its heat capacity?

Energies −s, inverse temperature β: ln Z generates the mean and the variance of the logits, entropy falls as β
rises, and the answer to a changed logit is a covariance (fluctuation–dissipation). None of it is an approximation,
so that a backend which misses an identity is wrong, whatever its inputs were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.experiments.estimates import mean_row
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.identities import violations
from attnlab.experiments.observables import observe
from attnlab.experiments.panels import boundary, measured, numbers
from attnlab.experiments.responses import Array, derivative, energy_variance
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    backend_styles,
    entitle,
    legend,
    new_figure,
    note,
    smooth,
)
from attnlab.theory import critical_beta, random_energy, unit_roundoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: heads, queries, keys, head dimension of the identities; β is the logits' standard deviation
_HEADS, _QUERIES, _KEYS, _HEAD_DIM = 4, 8, 48, 16
BETAS = (0.5, 2.0)
#: the row whose weights are added up
SUM_KEYS, SUM_DTYPE = 49_152, "float32"
CURVE_KEYS = 256
#: inverse temperatures of the curves, in units of the freezing one
CURVE = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.25, 1.5, 1.8, 2.2, 2.8)


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
        for found in violations(one.attend, q, k, v, beta / np.sqrt(_HEAD_DIM)):
            yield one.row(found.identity, {"beta": beta}, 0.0, found.largest, slack=found.tolerance)


def long_sums(one: OpenBackend, seed: int) -> Iterator[Row]:
    """How far the weights of a long row are from adding up to 1, with ones for values: against what roundings can do.

    The output is a sum of n weights over another sum of them, each with a relative error of at most γ_{n−1} in whatever
    order it is taken (Higham 2002, section 4.2), and each weight is rounded: together at most γ_{2n}. Independent
    roundings would add up to about √n·u, which is no bound: those of equal terms are not independent.
    """
    rng, roundoff = generator(seed, 960), unit_roundoff(SUM_DTYPE)
    k = rng.standard_normal((1, 1, SUM_KEYS, 8), dtype=np.float32)
    bound = 2 * SUM_KEYS * roundoff / (1 - 2 * SUM_KEYS * roundoff)
    for logits, length in (("equal", 0.0), ("normal", 1.0)):
        q = np.full((1, 1, 2, 8), length / math.sqrt(8), np.float32)
        sums = one.attend(q, k, np.ones_like(k), causal=False, scale=1.0).astype(np.float64)
        off = float(np.abs(sums - 1).max())
        where: Where = {"backend": one.name, "keys": SUM_KEYS, "logits": logits}
        yield Row.compare("|Σp − 1| in float32", where, bound, off, relation="≤")
        yield Row.only_measured("|Σp − 1| / √n·u in float32", where, off / (math.sqrt(SUM_KEYS) * roundoff))


def _curves(one: OpenBackend, seed: int) -> Iterator[Row]:
    """ln Z, ⟨s⟩, H and β²Var_p(s) of rows of iid N(0, β²) logits, against the random energy model."""
    for number, ratio in enumerate(CURVE):
        beta = ratio * critical_beta(CURVE_KEYS)
        rng = generator(seed, 950, number)
        q, k = (rng.standard_normal((1, 48, n, _HEAD_DIM)) for n in (_QUERIES, CURVE_KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        seen = observe(one.attend, q, k, scale=beta)
        exact = random_energy(CURVE_KEYS, beta)
        where: Where = {"backend": one.name, "beta / critical": ratio, "keys": CURVE_KEYS}
        for quantity in ("log_partition", "mean_energy", "entropy"):
            yield mean_row(quantity, where, getattr(seen, quantity)[0], predicted=getattr(exact, quantity))
        capacity, expected = (
            energy_variance(one.attend, q, k, scale=beta),
            exact_heat_capacity(CURVE_KEYS, beta),
        )
        yield mean_row("heat_capacity", where, capacity[0], predicted=expected)


def exact_heat_capacity(keys: int, beta: float) -> float:
    """E Var_p(βx), x the unit logits: β² d/dβ[β(1 − E Σp²)], as ⟨x⟩ = β(1 − E Σp²) by parts.

    The derivative by a central difference of the exact quadrature, relative error about 1e-5.
    """

    def energy(b: float) -> Array:
        return np.array(b * (1 - random_energy(keys, b).participation))

    return beta**2 * float(derivative(energy, beta, 0.02 * beta))


def conclusion(rows: Sequence[Row]) -> str:
    """The largest violation of any identity."""
    checked = [row for row in rows if "beta" in row.where]
    if not checked:
        return "No backend could be measured."
    through = len({str(row.where["backend"]) for row in checked})
    identities = len({row.quantity for row in checked})
    worst = max(checked, key=lambda row: row.measured)
    return (
        f"Of {identities} identities of a Boltzmann distribution, tried through {through} backends, the largest "
        f"violation is {worst.measured:.1e} ({worst.quantity}, {worst.where['backend']}). {_sums(rows)}"
        f"{agreement(rows, 'theory')}."
    )


def _sums(rows: Sequence[Row]) -> str:
    """How far the weights of the longest row are from adding up to 1."""
    sums, sizes = pick(rows, "|Σp − 1| in float32"), pick(rows, "|Σp − 1| / √n·u in float32")
    if not (sums and sizes):
        return ""
    worst, most = (max(found, key=lambda row: row.measured) for found in (sums, sizes))
    return (
        f"Over {SUM_KEYS} keys in float32 the weights add up to 1 within {worst.measured:.1e} "
        f"({worst.where['backend']}, {worst.where['logits']} logits; bound {worst.predicted:.1e}), at most "
        f"{most.measured:.2f} times √n·u. "
    )


#: what rounding can do to nothing at all: violations below are drawn here
_FLOOR = 1e-17
_BETA = "inverse temperature β / β_c"


def draw(finding: Finding) -> Figure:
    """Potentials and heat capacity against β on the left, violations of the identities on the right."""
    figure, panels = new_figure(3, 1, width=15.0, height=5.0, width_ratios=[1, 1, 1.25])
    _potentials(panels[0], finding.rows)
    _capacity(panels[1], pick(finding.rows, "heat_capacity"))
    _violations(panels[2], [row for row in finding.rows if "beta" in row.where])
    return figure


def _potentials(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(
        panel,
        "Above β_c ln Z grows linearly and H is small",
        _BETA,
        f"ln Z, β⟨s⟩ and H, over ln n, n = {CURVE_KEYS}",
    )
    for quantity, label, colour, offset in (
        ("log_partition", "ln Z", BLUE, (-8, 9)),
        ("mean_energy", "β⟨s⟩ = β d ln Z/dβ", ORANGE, (90, -30)),
        ("entropy", "H", GREEN, (-8, 9)),
    ):
        mine, unit = pick(rows, quantity), math.log(CURVE_KEYS)
        if not mine:
            continue
        _exact_and_measured(panel, mine, unit, colour)
        at = float(mine[-3].where["beta / critical"]), mine[-3].predicted / unit
        style: dict[str, Any] = {
            "textcoords": "offset points",
            "color": colour,
            "fontsize": 10,
            "ha": "right",
        }
        panel.annotate(label, at, offset, **style)
    boundary(panel, 1.0)


def _exact_and_measured(panel: Axes, rows: Sequence[Row], unit: float, colour: str) -> None:
    x = list(numbers(rows, "beta / critical"))
    panel.plot(*smooth(x, [row.predicted / unit for row in rows]), color=colour, linewidth=1.8)
    measured(panel, rows, "beta / critical", colour, unit)


def _capacity(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "The heat capacity peaks near freezing", _BETA, "β² Var_p(s)")
    if not rows:
        return
    _exact_and_measured(panel, rows, 1.0, RED)
    boundary(panel, 1.0)
    last, top = float(rows[-1].where["beta / critical"]), max(row.measured for row in rows)
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
