"""The norm of the softmax's Jacobian: its mean square and its tail, and the gradients that it passes on.

Measured through the backends in float64, and by automatic differentiation through those that have it. The mean square
of ‖J‖_F, J = diag p − ppᵀ, over standard normal inputs has an exact integral; its quantiles and the length of dL/dq
have not, and are sampled, each with its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab import figures
from attnlab.errors import Declined
from attnlab.figures import BLACK, BLUE, GREY, ORANGE, entitle, legend, note, points
from attnlab.lab import panels
from attnlab.lab.finding import Array, Experiment, Finding, Row, Shown, Where, pick, values
from attnlab.lab.observables import logit_gradients, observe
from attnlab.lab.survey import (
    Estimate,
    OpenBackend,
    Survey,
    agreement,
    generator,
    mean_over_clusters,
    statistic_over_clusters,
)
from attnlab.lab.theory import attention_under_random_inputs, critical_beta, random_energy
from attnlab.workload.inputs import Inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: heads, and queries and keys of each; of a slow backend, and by automatic differentiation
_HEADS, _HEAD_DIM, _KEYS = 32, 64, 1024
_SIZES, _SLOW_SIZES, _AUTOGRAD_SIZES = (96, _KEYS), (8, 64), (16, 192)
_SCALES: Mapping[str, float] = {"unscaled": 1.0, "scaled": _HEAD_DIM**-0.5}
#: standard deviations of the logits, in units of β_c
SWEEP = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 3.0, 4.5)
#: quantiles by name
QUANTILES: Mapping[str, float] = {"median ‖J‖": 0.5, "5 % quantile of ‖J‖": 0.05}
#: a row with a smaller Jacobian norm than this passes on next to nothing; share of rows below these norms
SMALL = 1e-3
THRESHOLDS = (1e-5, 1e-4, SMALL, 1e-2, 3e-2, 1e-1, 3e-1)
#: where the share of rows without a gradient is followed: over d_k unscaled, and over n scaled
HEAD_DIMS, LENGTHS = (64, 128, 256, 512, 1024, 1600, 4096), (256, 1024, 16384, 65536)
#: of the whole gradient of a query, and heads and queries there
WHOLE_HEAD_DIMS, _WHOLE_SIZES = (16, 64, 256, 1024), (16, 32)
#: a square norm is read from a backend to about 1e-12
_NORM_SLACK, _SQUARE_SLACK = 2e-6, 1e-12
SQUARE, BELOW, _AT = "mean ‖J‖²", "share of rows below", "beta / critical"
BELOW_AGAINST_DIM, MEDIAN_AGAINST_DIM = "share of rows below 1e-3 against d_k", "median ‖J‖ against d_k"
AGAINST_LENGTH, AGAINST_BETA = "median ‖J‖ against n", "mean ‖J‖² against β"
#: rows, at most, and copies of each; logits drawn in all, about; rows computed at once
_ROWS, _COPIES, _LOGITS, _AT_ONCE = 20_000, 32, 2**25, 2**20
#: rows drawn of the whole gradient, how many at once, and the parts of the sample that tell the error of a median
_WHOLE_ROWS, _WHOLE_AT_ONCE, _PARTS = 12_288, 512, 24
#: of lengths of the whole gradient
STATISTICS: Mapping[str, Callable[[Array], float]] = {
    "rms": lambda norms: float(np.mean(norms**2)) ** 0.5,
    "median": lambda norms: float(np.median(norms)),
}


def whole_quantity(statistic: str) -> str:
    """The name of the rows of the whole gradient of a query."""
    return f"{statistic} |dL/dq|, unscaled over scaled"


def measure(survey: Survey) -> None:
    """‖J‖_F of the rows through each backend: mean square, median, 5 % quantile, share below 1e-3.

    Predictions: the exact mean square; for the others `share_below` and `quantile`, their own error included.
    Then the gradient of the logits through autograd, its mean square against the same theory, and through one
    backend what becomes of the rows with d_k, unscaled, and with n, scaled, and the gradient that reaches a query.
    """
    survey.each(_through, _autograd, small_values)
    survey.one(lambda one, seed: [*sweep(one, seed), *_against_size(one, seed)])
    survey.one(whole)


def _through(one: OpenBackend, seed: int) -> Iterator[Row]:
    queries, keys = _SLOW_SIZES if one.slow else _SIZES
    rng = generator(seed, keys)
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (queries, keys))
    means = []
    for scaling, scale in _SCALES.items():
        squares = observe(one.attend, q, k, scale=scale).jacobian_norm_squared[0]
        row, where = (keys, _HEAD_DIM, scale), {"scaling": scaling, "keys": keys, "head_dim": _HEAD_DIM}
        expected = attention_under_random_inputs(*row).jacobian_norm_squared
        means.append(one.mean(SQUARE, where, squares, expected, _SQUARE_SLACK))
        yield means[-1]
        norms = np.sqrt(squares)
        for quantity, level in QUANTILES.items():
            yield _quantile_row(one, quantity, where, norms, level, row)
        for threshold in THRESHOLDS:
            yield _share_row(one, BELOW, {**where, "norm": threshold}, norms, threshold, row)
    unscaled, scaled = means
    ratio = math.sqrt(unscaled.measured / scaled.measured)
    expected = math.sqrt(unscaled.predicted / scaled.predicted)
    error = ratio * math.hypot(*(row.standard_error / row.measured for row in means)) / 2
    where = {"keys": keys, "head_dim": _HEAD_DIM}
    yield one.row("rms ‖J‖, unscaled over scaled", where, expected, ratio, standard_error=error)


#: keys, head dimension and scale of a row
_Law = tuple[int, int, float]


def _quantile_row(
    one: OpenBackend, quantity: str, where: Where, norms: Array, level: float, law: _Law
) -> Row:
    """A quantile of the measured norms against the predicted one, which has an error of its own."""
    found = statistic_over_clusters(norms, lambda some: float(np.quantile(some, level)))
    return one.estimate(quantity, where, found, quantile(level, *law), _NORM_SLACK)


def _share_row(
    one: OpenBackend, quantity: str, where: Where, norms: Array, threshold: float, law: _Law
) -> Row:
    """The share of the measured norms below `threshold` against the predicted one.

    Where it is small, few rows were seen or none, and their spread says nothing of what might have been: the error is
    then that of the predicted share, and some four rows are too few to judge by.
    """
    expected = share_below(threshold, *law)
    found, error = mean_over_clusters((norms < threshold).astype(np.float64))
    error = max(error, math.sqrt(expected.value * (1 - expected.value) / norms.size))
    return one.estimate(quantity, where, Estimate(found, error), expected, 4 / norms.size)


def _autograd(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Mean square gradient of a logit, for unit-variance random values and a unit gradient of the output."""
    rng, (queries, keys) = generator(seed, 700), _AUTOGRAD_SIZES
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (queries, keys))
    # values of one dimension and an upstream gradient of 1: then g = v has independent unit components
    v, upstream = rng.standard_normal((1, _HEADS, keys, 1)), np.ones((1, _HEADS, queries, 1))
    for scaling, scale in _SCALES.items():
        try:
            gradients = logit_gradients(one.backend, q, k, v, upstream, scale=scale)
        except Declined:
            return  # no automatic differentiation: nothing to measure, and nothing wrong
        where = {"scaling": scaling, "keys": keys, "head_dim": _HEAD_DIM}
        expected = attention_under_random_inputs(keys, _HEAD_DIM, scale).jacobian_norm_squared
        yield one.mean("mean ‖dL/ds‖² by autograd", where, (gradients**2).sum(axis=-1)[0], expected)


def small_values(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Norms of dL/dq, dL/dk and dL/dV with V/1000 over those with V, for the same gradient of the output."""
    q, k, v, upstream = generator(seed, 710).standard_normal((4, 1, 2, 24, 16))
    both = [one.gradients(Inputs.of(q, k, v / by, scale=0.25, output_gradient=upstream)) for by in (1, 1000)]
    for of, expected in (("query", 1e-3), ("key", 1e-3), ("value", 1.0)):
        norms = [float(np.linalg.norm(found[f"{of} gradient"])) for found in both if found]
        if norms:
            quantity, room = "norm of the gradient at V/1000 over at V", 1e-10 * expected
            yield one.row(quantity, {"of": of}, expected, norms[1] / norms[0], slack=room)


def sweep(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Mean ‖J‖² against the logits' standard deviation β, with queries of exactly the length √d."""
    for number, ratio in enumerate(SWEEP):
        beta = ratio * critical_beta(_KEYS)
        rng = generator(seed, 800, number)
        q, k = (rng.standard_normal((1, _HEADS, n, 8)) for n in _SIZES)
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        squares = observe(one.attend, q, k, scale=beta).jacobian_norm_squared[0]
        expected = random_energy(_KEYS, beta).jacobian_norm_squared
        yield one.mean(AGAINST_BETA, {"keys": _KEYS, _AT: ratio}, squares, expected, _SQUARE_SLACK)


def _against_size(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Rows without a gradient against d_k, unscaled over 1024 keys; the median norm against n, scaled at d_k = 64.

    Given its query a row has independent normal logits, whose size follows from the query's length alone. So queries of
    a few dimensions with lengths of the law χ of d_k dimensions give rows of the same law for less work.
    """

    def norms_of(law: _Law, dims: int, heads: int, rng: np.random.Generator) -> Array:
        """‖J‖_F, (heads, queries), of queries of `dims` dimensions as long as those of the row's head dimension."""
        keys, head_dim, scale = law
        q, k = (rng.standard_normal((1, heads, n, dims)) for n in (16, keys))
        length = np.sqrt(rng.chisquare(head_dim, (1, heads, 16, 1)))
        q *= length / np.linalg.norm(q, axis=-1, keepdims=True)
        return np.asarray(np.sqrt(observe(one.attend, q, k, scale=scale).jacobian_norm_squared[0]))

    for head_dim in HEAD_DIMS:
        law, where = (_KEYS, head_dim, 1.0), {"scaling": "unscaled", "keys": _KEYS, "head_dim": head_dim}
        norms = norms_of(law, 32, 160, generator(seed, 820, head_dim))
        yield _share_row(one, BELOW_AGAINST_DIM, where, norms, SMALL, law)
        yield _quantile_row(one, MEDIAN_AGAINST_DIM, where, norms, 0.5, law)
    for keys in LENGTHS:
        law = (keys, _HEAD_DIM, _SCALES["scaled"])
        where = {"scaling": "scaled", "keys": keys, "head_dim": _HEAD_DIM}
        norms = norms_of(law, 8, 24, generator(seed, 830, keys))
        yield _quantile_row(one, AGAINST_LENGTH, where, norms, 0.5, law)


def whole(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Root mean square and median of |dL/dq|, unscaled over scaled, by automatic differentiation through one backend.

    Nothing of a backend without it. Predictions are sampled, their own error included.
    """
    heads, queries = _WHOLE_SIZES
    for head_dim in WHOLE_HEAD_DIMS:
        rng = generator(seed, 850, head_dim)
        q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (queries, _KEYS))
        # values and the output's gradient in one dimension: the weights' gradient is then the values
        v, upstream = np.zeros_like(k), np.zeros_like(q)
        v[..., 0], upstream[..., 0] = rng.standard_normal(k.shape[:-1]), 1.0
        norms = []
        for scale in (1.0, head_dim**-0.5):
            gradients = one.gradients(Inputs.of(q, k, v, scale=scale, output_gradient=upstream))
            if gradients is None:
                return
            norms.append(np.linalg.norm(gradients["query gradient"].astype(np.float64)[0], axis=-1))
        for name in STATISTICS:
            found = ratio_of_lengths(name, np.concatenate(norms, axis=1))
            where = {"keys": _KEYS, "head_dim": head_dim}
            yield one.estimate(whole_quantity(name), where, found, predicted_ratio(name, _KEYS, head_dim))


# -- laws of a row over standard normal inputs that have no integral ---------------------------------
#
# Rows of the random energy model are drawn, and the two things that decide most of ‖J‖ are not left to chance: β is
# drawn a stratum of its law a row, and the largest logit, which given all others is a normal number above the second
# largest, a stratum of its law a copy of the row. That makes the error some ten times smaller than that of as many
# independent rows.
#
# The whole gradient of a query is dL/dq = scale · Σ_j (Jg)_j k_j, in which the scale is a factor. With the weights'
# gradient g of independent unit components three draws make its length: |dL/dq|² = scale² (‖Jg‖² χ²_{d_k − 1} +
# (Σ_j (Jg)_j x_j)²), with x_j the key's component along the query, of which the weights are made, and the others
# independent of all.


@lru_cache(maxsize=256)
def share_below(threshold: float, keys: int, head_dim: int, scale: float) -> Estimate:
    """P(‖J‖_F < threshold) of a row of softmax(scale · q·k) over `keys`, q and k ~ N(0, I) in `head_dim` dimensions."""
    return mean_over_clusters((_norms(keys, head_dim, scale) < threshold).astype(np.float64))


@lru_cache(maxsize=256)
def quantile(level: float, keys: int, head_dim: int, scale: float) -> Estimate:
    """The `level` quantile of ‖J‖_F, 0 < level < 1; arguments as `share_below`.

    Standard error: half the distance of the quantiles one standard error of the level away to both sides (Woodruff
    1952).
    """
    norms = _norms(keys, head_dim, scale)
    value = float(np.quantile(norms, level))
    _, error = mean_over_clusters((norms < value).astype(np.float64))
    low, high = np.quantile(norms, np.clip([level - error, level + error], 0, 1))
    return Estimate(value, float(high - low) / 2)


@lru_cache(maxsize=4)
def _norms(keys: int, head_dim: int, scale: float) -> Array:
    """‖J‖_F of rows, (rows, copies), the same in every run; rows are independent of each other."""
    from scipy.stats import chi2

    rng = generator(0, 610, keys, head_dim)
    rows = min(_ROWS, max(256, _LOGITS // keys))
    levels = (rng.permutation(rows) + rng.random(rows)) / rows
    beta = scale * np.sqrt(chi2.ppf(levels, head_dim))
    at_once = max(1, _AT_ONCE // keys)
    return np.concatenate([_part(keys, beta[i : i + at_once], rng) for i in range(0, rows, at_once)])


def _part(keys: int, beta: Array, rng: np.random.Generator) -> Array:
    """‖J‖_F of a row for each β, in copies that differ by the largest logit: (rows, copies).

    With w_j = e^{s_j − s_max} of the keys but the largest, R = Σw and p = 1/(1 + R), the squared norm is
    p⁴R² + p²Σw² − 2p³Σw³ + 2p⁴Σw² + p⁴(Σw²)², in which nothing cancels.
    """
    from scipy.special import ndtr, ndtri

    x = rng.standard_normal((beta.size, keys))
    x[np.arange(beta.size), x.argmax(axis=1)] = -np.inf
    second = x.max(axis=1, keepdims=True)
    w = np.exp(beta[:, None] * (x - second))
    squares = w * w
    first, square, cube = (one.sum(axis=1, keepdims=True) for one in (w, squares, squares * w))
    above = (np.arange(_COPIES) + rng.random((beta.size, _COPIES))) / _COPIES * ndtr(-second)
    down = np.exp(-beta[:, None] * (-ndtri(above) - second))  # e^{s_second − s_max}
    first, square, cube = first * down, square * down**2, cube * down**3
    p = 1 / (1 + first)
    return np.asarray(
        np.sqrt(p**4 * first**2 + p**2 * square - 2 * p**3 * cube + 2 * p**4 * square + p**4 * square**2)
    )


def ratio_of_lengths(name: str, pairs: Array) -> Estimate:
    """The statistic called `name` of |dL/dq| unscaled over scaled; pairs : (clusters, unscaled and then scaled)."""

    def ratio(both: Array) -> float:
        unscaled, scaled = np.split(both, 2, axis=1)
        return STATISTICS[name](unscaled) / STATISTICS[name](scaled)

    return statistic_over_clusters(pairs, ratio)


@lru_cache(maxsize=64)
def predicted_ratio(name: str, keys: int, head_dim: int) -> Estimate:
    """`ratio_of_lengths` for rows of `keys` keys, from rows of the law, the same in every run."""
    pairs = [_lengths(keys, head_dim, scale).reshape(_PARTS, -1) for scale in (1.0, head_dim**-0.5)]
    return ratio_of_lengths(name, np.concatenate(pairs, axis=1))


@lru_cache(maxsize=8)
def _lengths(keys: int, head_dim: int, scale: float) -> Array:
    """|dL/dq| of rows, the same in every run and, but for what the scale does, with every scale."""
    rng = generator(0, 860, head_dim)
    found = []
    for _ in range(_WHOLE_ROWS // _WHOLE_AT_ONCE):
        length = np.sqrt(rng.chisquare(head_dim, (_WHOLE_AT_ONCE, 1)))
        x, g = rng.standard_normal((2, _WHOLE_AT_ONCE, keys))
        logits = scale * length * x
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        passed = weights * (g - (weights * g).sum(axis=1, keepdims=True))
        across = (passed**2).sum(axis=1) * rng.chisquare(head_dim - 1, _WHOLE_AT_ONCE)
        found.append(scale * np.sqrt(across + (passed * x).sum(axis=1) ** 2))
    return np.concatenate(found)


# -- what is said and drawn ---------------------------------------------------------------------------


def conclusion(rows: Sequence[Row]) -> str:
    """The root mean square and the tail, with and without the scale; other sizes; and the whole gradient."""
    squares, below = pick(rows, SQUARE, keys=_KEYS), pick(rows, BELOW, norm=SMALL, keys=_KEYS)
    if not squares:
        return f"No backend could be measured at n = {_KEYS}. {agreement(rows, 'the predictions')}."

    def average(found: Sequence[Row], scaling: str) -> float:
        return float(values(pick(found, scaling=scaling), "measured").mean())

    rms = {scaling: average(squares, scaling) ** 0.5 for scaling in _SCALES}
    tail = {scaling: 100 * average(below, scaling) for scaling in _SCALES}
    error = 100 * pick(below, scaling="unscaled")[0].standard_error
    expected = share_below(SMALL, _KEYS, _HEAD_DIM, 1.0)
    direction = "larger" if rms["unscaled"] > rms["scaled"] else "smaller"
    told = [
        f"At n = {_KEYS}, d_k = {_HEAD_DIM} the unscaled Jacobian is {direction} on average than the "
        f"scaled one (rms {rms['unscaled']:.3f} against {rms['scaled']:.3f}), while {tail['unscaled']:.1f} ± "
        f"{error:.1f} % of its rows (sampled from theory: {100 * expected.value:.2f} ± {100 * expected.error:.2f} %) "
        f"lie below {SMALL:g}, against {tail['scaled']:.1f} % of the scaled ones (± one standard error, here and "
        "below)."
    ]

    def dims(found: Sequence[Row]) -> str:
        return ", ".join(str(row.where["head_dim"]) for row in found)

    shares, medians, long = (
        pick(rows, name) for name in (BELOW_AGAINST_DIM, MEDIAN_AGAINST_DIM, AGAINST_LENGTH)
    )
    if shares and medians and long:
        first = next((row for row in medians if row.predicted < SMALL), None)
        percent = ", ".join(f"{100 * row.measured:.1f} ± {100 * row.standard_error:.1f}" for row in shares)
        median = f"; by theory the median row does at {first.where['head_dim']} and beyond" if first else ""
        told.append(
            f"Unscaled, {percent} % do at d_k = {dims(shares)}{median}. Scaled, the median falls with the length, "
            f"from {long[0].measured:.3f} at n = {long[0].where['keys']} to {long[-1].measured:.4f} at "
            f"{long[-1].where['keys']}."
        )
    mean, median_length = (pick(rows, whole_quantity(name)) for name in STATISTICS)
    if mean:
        listed = [
            ", ".join(f"{row.measured:.3g} ± {row.standard_error:.2g}" for row in found)
            for found in (mean, median_length)
        ]
        told.append(
            f"Of the whole gradient dL/dq, in which the scale is a factor, the root mean square unscaled is "
            f"{listed[0]} times the scaled one at d_k = {dims(mean)}, and the median {listed[1]} times."
        )
    return " ".join([*told, f"{agreement(rows, 'the predictions')}."])


def draw(finding: Finding) -> Figure:
    """The mean norm, its quantiles and tail, how they go with d_k and n, and the whole gradient of a query."""
    figure, (average, spread, tail, size, longer, whole) = figures.new_figure(3, 2, width=16.5, height=9.0)
    _average(average, pick(finding.rows, AGAINST_BETA))
    shown = (SQUARE, *QUANTILES, BELOW)
    compared = panels.of_most_keys(row for row in finding.rows if row.quantity in shown)
    _spread(spread, compared)
    _tail(tail, pick(compared, BELOW))
    _against_dims(size, pick(finding.rows, BELOW_AGAINST_DIM))
    _against_lengths(longer, pick(finding.rows, AGAINST_LENGTH))
    _whole(whole, finding.rows)
    return figure


def _average(panel: Axes, rows: Sequence[Row]) -> None:
    label = "standard deviation of the logits, β / β_c"
    entitle(panel, "The average is largest beyond freezing", label, "rms ‖J‖_F")
    if not rows:
        return
    keys, x = int(rows[0].where["keys"]), values(rows, _AT)
    critical = critical_beta(keys)

    def exact(ratio: float) -> float:
        return math.sqrt(random_energy(keys, ratio * critical).jacobian_norm_squared)

    fine = [float(one) for one in np.geomspace(x.min(), x.max(), 120)]
    curve = [exact(one) for one in fine]
    panel.plot(fine, curve, color=BLUE, linewidth=1.8)
    root = np.sqrt(values(rows, "measured"))
    points(panel, x, root, values(rows, "standard_error") / (2 * root), BLUE)
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
    panels.boundary(panel, 1.0)
    note(panel, 0.6 * x[-1], 0.75 * max(curve), f"exact, n = {keys}", BLUE)


def _spread(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "Unscaled rows differ by orders of magnitude", "", "‖J‖_F of a row")
    for scaling, colour, shift in (("scaled", BLUE, -0.12), ("unscaled", ORANGE, 0.12)):
        for place, (quantity, power) in enumerate(((SQUARE, 0.5), *((one, 1.0) for one in QUANTILES))):
            mine, x = pick(rows, quantity, scaling=scaling), place + shift
            form = math.sqrt if power == 0.5 else float
            panels.by_backend(panel, mine, x, colour, form=form, named=False)
            # all are given the same rows: one error bar stands for all
            for row in panels.of_first_backend(mine):
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
        first = panels.of_first_backend(mine)
        panel.plot(values(first, "norm"), values(first, "predicted"), color=colour, linewidth=1.0)
        panels.measured(panel, first, "norm", colour, fmt="none", within=(0.0, 1.0))
        panels.by_backend(panel, mine, "norm", colour, named=scaling == "scaled")
    panel.set_xscale("log")
    panel.set_yscale("symlog", linthresh=1e-3)
    panel.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
    panels.boundary(panel, 1e-3)
    note(panel, 1.4e-3, 6e-3, "unscaled", ORANGE)
    note(panel, 2e-3, 1.5e-4, "scaled", BLUE)
    panel.set_ylim(-2e-4, 1.3)
    legend(panel, fontsize=8, title="through", title_fontsize=8, loc="upper left")


def _against_dims(panel: Axes, rows: Sequence[Row]) -> None:
    """The share of rows without a gradient against d_k."""
    title = "... and the tail becomes the bulk as d_k grows"
    entitle(panel, title, "head dimension d_k", "share of rows with ‖J‖_F < 1e-3")
    figures.powers_of_two(panel, HEAD_DIMS)
    figures.share_axis(panel)
    if not rows:
        return
    x = values(rows, "head_dim")
    panels.compared(panel, rows, "head_dim", ORANGE, smooth=True)
    panel.axhline(0.5, color=GREY, linestyle="--", linewidth=1.2)
    note(panel, x[0], 0.515, "above this line the median row is among them", GREY)
    note(panel, 1.3 * x[2], 0.15, f"unscaled, n = {_KEYS}", ORANGE)
    panel.set_ylim(0, 0.8)


def _against_lengths(panel: Axes, rows: Sequence[Row]) -> None:
    """The median norm against n, scaled, beside its root mean square where a row's weights are near 1/n: √(e/n)."""
    entitle(panel, "Scaled, the gradient shrinks with the length", "keys n", "median ‖J‖_F")
    figures.powers_of_two(panel, LENGTHS)
    panel.set_yscale("log")
    if not rows:
        return
    x = values(rows, "keys")
    panel.plot(x, np.sqrt(math.e / x), "--", color=GREY, linewidth=1.2)
    panels.compared(panel, rows, "keys", BLUE)
    note(panel, x[1], 1.25 * math.sqrt(math.e / x[1]), "√(e/n)", GREY)
    note(panel, x[0], 0.4 * rows[1].predicted, f"scaled, d_k = {_HEAD_DIM}", BLUE)


def _whole(panel: Axes, rows: Sequence[Row]) -> None:
    """Both statistics of the whole gradient of a query against d_k."""
    title = "The whole gradient, unscaled over scaled"
    entitle(panel, title, "head dimension d_k", "|dL/dq| unscaled / scaled")
    figures.powers_of_two(panel, WHOLE_HEAD_DIMS)
    panel.set_yscale("log")
    panel.axhline(1.0, color=BLACK, linewidth=1.0)
    for name, colour, text, above in (
        ("rms", BLUE, "root mean square", 1.35),
        ("median", ORANGE, "median row", 0.4),
    ):
        if mine := pick(rows, whole_quantity(name)):
            panels.compared(panel, mine, "head_dim", colour)
            x, y = float(mine[1].where["head_dim"]), above * mine[1].predicted
            note(panel, x, y, text, colour, ha="center")


EXPERIMENT = Experiment(
    title="The vanishing gradient",
    question="Do the gradients through an unscaled softmax vanish: on average, or in a tail of the rows?",
    theory="The gradient that reaches the logits of a row is Jg: g is the gradient of its weights, J = diag "
    "p − ppᵀ the Jacobian of the softmax. For a g of independent components of mean 0 and unit variance E|Jg|² = "
    "‖J‖_F² = S₂ − 2S₃ + S₂², S_k = Σp^k. It is small at both ends: (n − 1)/n² for equal weights, 0 where "
    "one key has all the weight; at n = 1024 its mean is largest at 1.5 times the freezing β. So at d_k = "
    "64 the unscaled rows have the larger mean square, and some of them next to nothing; with d_k their "
    "share grows. The mean square is an exact integral. Shares and quantiles are sampled from the random "
    "energy model, over strata of its largest logit, and carry the error of that.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Top left: root mean square of ‖J‖_F against the standard deviation β of the logits; the line "
    "is exact. Top middle: root mean square, median and 5 % quantile; bars are predicted. Top right: share "
    "of the rows whose ‖J‖_F is below x; lines join the predictions. Bottom left: share below 1e-3 against "
    "d_k, without the scale. Bottom middle: the median against n, with it. Bottom right: the length of "
    "dL/dq, the scale included, unscaled over scaled. Vertical bars are five standard errors.",
    lesson="That ‖J‖ vanishes (is below 1e-3) without 1/√d_k is true of a share of the rows, at n = 1024 of "
    "about 2.6 % at d_k = 64 and more than half from d_k ≈ 1,400 on; its root mean square over rows does "
    "not. And with the scale ‖J‖ falls as √(e/n) for large n and d_k, in the median as in the root mean square. All of "
    "this is for standard normal queries and keys, before any training.",
    shown=(
        Shown("mean ‖J‖²", {"keys": 1024}),
        Shown("median ‖J‖", {"keys": 1024}),
        Shown("5 % quantile of ‖J‖", {"keys": 1024}),
        Shown("share of rows below", {"keys": 1024, "norm": 0.001}),
        Shown("share of rows below 1e-3 against d_k"),
        Shown("median ‖J‖ against d_k"),
        Shown("median ‖J‖ against n"),
        Shown("mean ‖dL/ds‖² by autograd"),
        Shown("rms |dL/dq|, unscaled over scaled"),
        Shown("median |dL/dq|, unscaled over scaled"),
    ),
)
