"""Do gradients vanish without 1/√d_k? In a share of the rows that grows with d_k, and not on average.

What reaches the logits is Jg, with J = diag p − ppᵀ the softmax Jacobian and g the gradient of the weights; for a g
of independent unit components E‖Jg‖² = ‖J‖_F². Its mean square is larger at the freezing point than at either end, so
that the average says the opposite of what is often claimed, while frozen rows do receive nothing: few of them at
d_k = 64, more than half from d_k ≈ 1,600 on at n = 1024. With the scale ‖J‖ shrinks too, with the length, as √(e/n).
Measured through the backends in float64, and by automatic differentiation through those that have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.backends.contender import in_this_process
from attnlab.errors import Declined
from attnlab.experiments import gradient_sizes, query_gradient
from attnlab.experiments.estimates import mean_row
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.gradient_sizes import SMALL, quantile_row, share_row
from attnlab.experiments.jacobian_sampling import quantile, share_below
from attnlab.experiments.observables import observe
from attnlab.experiments.panels import boundary, by_backend, measured, numbers, of_first_backend
from attnlab.experiments.responses import Array, logit_gradients
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import (
    BLUE,
    ORANGE,
    entitle,
    legend,
    new_figure,
    note,
    points,
)
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.theory import attention_under_random_inputs, critical_beta, random_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEAD_DIM, _KEYS, _SLOW_KEYS, _AUTOGRAD_KEYS = 64, 1024, 64, 192
_HEADS, _QUERIES, _SLOW_QUERIES, _AUTOGRAD_QUERIES = 32, 96, 8, 16
_SCALES: Mapping[str, float] = {"unscaled": 1.0, "scaled": _HEAD_DIM**-0.5}
#: of a ratio of two gradients in float64, with room
_ROUNDING = 1e-10
_SMALL_SCALE = 0.25
#: standard deviations of the logits, in units of β_c
SWEEP = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 3.0, 4.5)

#: quantiles by name
QUANTILES: Mapping[str, float] = {"median ‖J‖": 0.5, "5 % quantile of ‖J‖": 0.05}
#: share of rows below these Jacobian norms, the third of them `SMALL`
THRESHOLDS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)


def measure(survey: Survey) -> None:
    """‖J‖_F of the rows through each backend: mean square, median, 5 % quantile, share below 1e-3.

    Predictions: the exact mean square; for the others `attnlab.experiments.jacobian_sampling`, its own error included.
    Then the gradient of the logits through autograd, its mean square against the same theory, and through one
    backend what becomes of the rows with d_k, unscaled, and with n, scaled, and the gradient that reaches a query.
    """
    survey.each(
        _through, *(partial(measure, folders=survey.folders) for measure in (_autograd, small_values))
    )
    survey.one(lambda one, seed: [*_sweep(one, seed), *gradient_sizes.against_size(one, seed)])
    survey.one(partial(query_gradient.whole, folders=survey.folders))


def _through(one: OpenBackend, seed: int) -> Iterator[Row]:
    keys, queries = (_SLOW_KEYS, _SLOW_QUERIES) if one.slow else (_KEYS, _QUERIES)
    rng = generator(seed, keys)
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (queries, keys))
    means = []
    for scaling, scale in _SCALES.items():
        squares = observe(one.attend, q, k, scale=scale).jacobian_norm_squared[0]
        where: Where = {"backend": one.name, "scaling": scaling, "keys": keys, "head_dim": _HEAD_DIM}
        expected = attention_under_random_inputs(keys, _HEAD_DIM, scale).jacobian_norm_squared
        means.append(mean_row("mean ‖J‖²", where, squares, predicted=expected, slack=1e-12))
        yield means[-1]
        norms, row = np.sqrt(squares), (keys, _HEAD_DIM, scale)
        for quantity, level in QUANTILES.items():
            yield quantile_row(quantity, where, norms, level, quantile(level, *row))
        for threshold in THRESHOLDS:
            at = {**where, "norm": threshold}
            yield share_row("share of rows below", at, norms, threshold, share_below(threshold, *row))
    unscaled, scaled = means
    ratio = math.sqrt(unscaled.measured / scaled.measured)
    expected = math.sqrt(unscaled.predicted / scaled.predicted)
    error = ratio * math.hypot(*(row.standard_error / row.measured for row in means)) / 2
    where = {"keys": keys, "head_dim": _HEAD_DIM}
    yield one.row("rms ‖J‖, unscaled over scaled", where, expected, ratio, standard_error=error)


def _autograd(one: OpenBackend, seed: int, folders: Sequence[Path | str]) -> Iterator[Row]:
    """Mean square gradient of a logit, for unit-variance random values and a unit gradient of the output."""
    rng = generator(seed, 700)
    shapes = (_AUTOGRAD_QUERIES, _AUTOGRAD_KEYS)
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in shapes)
    # values of one dimension and an upstream gradient of 1: then g = v has independent unit components
    v = rng.standard_normal((1, _HEADS, _AUTOGRAD_KEYS, 1))
    upstream = np.ones((1, _HEADS, _AUTOGRAD_QUERIES, 1))
    for scaling, scale in _SCALES.items():
        try:
            gradients = logit_gradients(in_this_process(one.name, folders), q, k, v, upstream, scale=scale)
        except Declined:
            return  # no automatic differentiation: nothing to measure, and nothing wrong
        sizes: Where = {"keys": _AUTOGRAD_KEYS, "head_dim": _HEAD_DIM}
        where: Where = {"backend": one.name, "scaling": scaling, **sizes}
        expected = attention_under_random_inputs(_AUTOGRAD_KEYS, _HEAD_DIM, scale).jacobian_norm_squared
        squares = (gradients**2).sum(axis=-1)[0]
        yield mean_row("mean ‖dL/ds‖² by autograd", where, squares, predicted=expected)


def small_values(one: OpenBackend, seed: int, folders: Sequence[Path | str]) -> Iterator[Row]:
    """Norms of dL/dq, dL/dk and dL/dV with V/1000 over those with V, for the same gradient of the output."""
    rng = generator(seed, 710)
    q, k, v, upstream = rng.standard_normal((4, 1, 2, 24, 16))
    found: list[Mapping[str, Array]] = []
    for values in (v, v / 1000):
        problem = Problem.of(q, k, values, scale=_SMALL_SCALE, output_gradient=upstream)
        workload = Workload.of_problem(problem, direction="backward")
        try:
            backend = in_this_process(one.name, folders)
            found.append(backend.named(workload, backend.bind(workload, problem)()))
        except Declined:
            return  # no automatic differentiation
    plain, small = found
    for of, expected in (("query", 1e-3), ("key", 1e-3), ("value", 1.0)):
        large, left = (float(np.linalg.norm(one[f"{of} gradient"])) for one in (plain, small))
        quantity = "norm of the gradient at V/1000 over at V"
        yield one.row(quantity, {"of": of}, expected, left / large, slack=_ROUNDING * expected)


def _sweep(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Mean ‖J‖² and the tail against the logits' standard deviation β, with queries of exactly the length √d."""
    for number, ratio in enumerate(SWEEP):
        beta = ratio * critical_beta(_KEYS)
        rng = generator(seed, 800, number)
        q, k = (rng.standard_normal((1, _HEADS, n, 8)) for n in (_QUERIES, _KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        squares = observe(one.attend, q, k, scale=beta).jacobian_norm_squared[0]
        where: Where = {"backend": one.name, "keys": _KEYS, "beta / critical": ratio}
        expected = random_energy(_KEYS, beta).jacobian_norm_squared
        yield mean_row("mean ‖J‖² against β", where, squares, predicted=expected, slack=1e-12)


def conclusion(rows: Sequence[Row]) -> str:
    """The root mean square and the tail, with and without the scale."""
    mine = pick(rows, keys=_KEYS)
    squares, below = pick(mine, "mean ‖J‖²"), pick(mine, "share of rows below", norm=SMALL)
    if not squares:
        return f"No backend could be measured at n = {_KEYS}. {agreement(rows, 'the predictions')}."

    def average(found: Sequence[Row], scaling: str) -> float:
        return float(np.mean([row.measured for row in pick(found, scaling=scaling)]))

    rms = {scaling: average(squares, scaling) ** 0.5 for scaling in _SCALES}
    tail = {scaling: 100 * average(below, scaling) for scaling in _SCALES}
    error = 100 * pick(below, scaling="unscaled")[0].standard_error
    expected = share_below(SMALL, _KEYS, _HEAD_DIM, 1.0)
    direction = "larger" if rms["unscaled"] > rms["scaled"] else "smaller"
    return (
        f"At n = {_KEYS}, d_k = {_HEAD_DIM} the unscaled Jacobian is {direction} on average than the "
        f"scaled one (rms {rms['unscaled']:.3f} against {rms['scaled']:.3f}), while {tail['unscaled']:.1f} ± "
        f"{error:.1f} % of its rows (sampled from theory: {100 * expected.value:.2f} ± {100 * expected.error:.2f} %) "
        f"lie below {SMALL:g}, against {tail['scaled']:.1f} % of the scaled ones (± one standard error, here and "
        f"below). {gradient_sizes.told(rows)}{query_gradient.told(rows)}"
        f"{agreement(rows, 'the predictions')}."
    )


def draw(finding: Finding) -> Figure:
    """Root mean square against β; rms, median and 5 % quantile by scaling; shares of rows by norm and by d_k; the
    median against n; and the gradient that reaches a query."""
    figure, (average, spread, tail, size, longer, whole) = new_figure(3, 2, width=16.5, height=9.0)
    _average(average, pick(finding.rows, "mean ‖J‖² against β"))
    shown = ("mean ‖J‖²", *QUANTILES, "share of rows below")
    compared = [row for row in finding.rows if row.quantity in shown]
    compared = pick(compared, keys=max((int(row.where["keys"]) for row in compared), default=0))
    _spread(spread, compared)
    _tail(tail, pick(compared, "share of rows below"))
    gradient_sizes.draw_dims(size, finding.rows)
    gradient_sizes.draw_lengths(longer, finding.rows)
    query_gradient.draw(whole, finding.rows)
    return figure


def _average(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(
        panel,
        "The average is largest beyond freezing",
        "standard deviation of the logits, β / β_c",
        "rms ‖J‖_F",
    )
    if not rows:
        return
    keys, x = int(rows[0].where["keys"]), numbers(rows, "beta / critical")
    critical = critical_beta(keys)

    def exact(ratio: float) -> float:
        return math.sqrt(random_energy(keys, ratio * critical).jacobian_norm_squared)

    fine = [float(one) for one in np.geomspace(x.min(), x.max(), 120)]
    curve = [exact(one) for one in fine]
    panel.plot(fine, curve, color=BLUE, linewidth=1.8)
    root = np.sqrt([row.measured for row in rows])
    points(panel, x, root, np.array([row.standard_error for row in rows]) / (2 * root), BLUE)
    for beta, label, offset in (
        (1.0, "β = 1: scaled, d_k = 64", (66, -6)),
        (8.0, "β = 8: unscaled, d_k = 64", (12, 6)),
    ):
        at = beta / critical, exact(beta / critical)
        panel.plot(*([one] for one in at), "D", color=ORANGE, markersize=8, zorder=5)
        look: dict[str, Any] = {"color": ORANGE, "fontsize": 9.5}
        if beta < critical:  # beyond the dashed line, which it would cross
            look["arrowprops"] = {"arrowstyle": "-", "color": ORANGE, "shrinkB": 5}
        panel.annotate(label, at, offset, textcoords="offset points", **look)
    boundary(panel, 1.0)
    note(panel, 0.6 * x[-1], 0.75 * max(curve), f"exact, n = {keys}", BLUE)


def _spread(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "Unscaled rows differ by orders of magnitude", "", "‖J‖_F of a row")
    for scaling, colour, shift in (("scaled", BLUE, -0.12), ("unscaled", ORANGE, 0.12)):
        for place, (quantity, power) in enumerate((("mean ‖J‖²", 0.5), *((one, 1.0) for one in QUANTILES))):
            mine, x = pick(rows, quantity, scaling=scaling), place + shift
            by_backend(panel, mine, x, colour, form=lambda one, power=power: one**power, named=False)  # type: ignore[misc]
            for row in of_first_backend(mine):  # all are given the same rows: one error bar stands for all
                error = power * row.measured ** (power - 1) * row.standard_error
                points(panel, [x], [row.measured**power], [error], colour, fmt="none")
                panel.plot([x - 0.1, x + 0.1], [row.predicted**power] * 2, color=colour, lw=1.6)
        panel.plot([], [], color=colour, label=scaling)
    panel.set_yscale("log")
    panel.set_xticks(range(3), ["root mean\nsquare", "median", "5 % quantile"])
    panel.set_xlim(-0.5, 2.5)
    legend(panel, fontsize=9.5, loc="lower left", title="bars predicted, marks measured", title_fontsize=8.5)


def _tail(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "A tail of rows gets next to nothing", "x", "share of rows with ‖J‖_F < x")
    if not rows:
        return
    for scaling, colour in (("scaled", BLUE), ("unscaled", ORANGE)):
        mine = pick(rows, scaling=scaling)
        first = of_first_backend(mine)
        panel.plot(numbers(first, "norm"), [row.predicted for row in first], color=colour, linewidth=1.0)
        measured(panel, first, "norm", colour, fmt="none")
        by_backend(panel, mine, "norm", colour, named=scaling == "scaled")
    panel.set_xscale("log")
    panel.set_yscale("symlog", linthresh=1e-3)
    panel.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
    boundary(panel, 1e-3)
    note(panel, 1.4e-3, 6e-3, "unscaled", ORANGE)
    note(panel, 2e-3, 1.5e-4, "scaled", BLUE)
    panel.set_ylim(-2e-4, 1.3)
    legend(panel, fontsize=8, title="through", title_fontsize=8, loc="upper left")
