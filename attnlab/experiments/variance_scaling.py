"""The variance of the logits against d_k at three scales, and the law of q·k.

Here every logit is read out of a backend's weights (`read_logits`) and its variance held against the exact one, with
the standard error that many rows sharing few queries and keys really have. The rest of the law needs no backend:
`attnlab.experiments.score_sampling`.

Tokens may share a direction: each is √(a d_model) u + √(1 − a) z with one unit vector u for all and z standard normal,
so that E|x|² = d_model whatever a is, and with projections of variance 1/d_model a scaled score has variance 1 over the
weights. Within a row the shared part of the keys adds one number to all scores, which the softmax takes away again:
what is left has variance 1 − a. Trained tokens share much (Ethayarajh 2019, 1909.00512, measures cosines up to .99
between unrelated words).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab import figures
from attnlab.experiments import panels
from attnlab.experiments.finding import Array, Experiment, Finding, Row, Shown, pick, values
from attnlab.experiments.observables import read_logits, weights_of
from attnlab.experiments.score_sampling import DOT_PRODUCTS, FAMILIES, HEAD_DIMS, sampled_rows
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator, log_log_slope
from attnlab.figures import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, entitle, legend, note, points
from attnlab.theory import dot_product_moments, score_cdf, score_characteristic_function

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
#: independent heads, and queries and keys in each: 131,072 logits a point; a slow backend gets the second
_SIZES, _SLOW_SIZES = (32, 64, 64), (8, 16, 16)
#: of |x|², in the direction that tokens share
SHARES = (0.0, 0.5, 0.8, 0.95)
#: draws of the projections, tokens that ask and that are asked, dimensions of a token and of a head
_DRAWS, _QUERIES, _KEYS, _MODEL_DIM, _HEAD_DIM = 96, 12, 24, 128, 32
SLOPE = "slope of ln variance on ln d_k"
OVER_WEIGHTS, IN_ROW = "variance of the scores over the weights", "variance of the scores within a row"


def measure(survey: Survey) -> None:
    """Var(logit) against d_k, for three scalings, read through each backend in float64; and the law of q·k.

    Prediction: scale²·d_k for standard normal q and k, and `attnlab.theory` for the rest. Measured: the mean of s² over
    all logits, its mean being 0 by symmetry. Standard error: `DotProductMoments.variance_standard_error`.
    """
    survey.facts["dot products sampled"] = DOT_PRODUCTS
    survey.rows += sampled_rows(survey.seed, SCALINGS)
    survey.each(_through, shared_direction)


def _through(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Variances at every d_k and scaling through one backend, and the slopes on d_k."""
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    for scaling, power in SCALINGS.items():
        rows = []
        for head_dim in HEAD_DIMS:
            # the same draw for every backend and scaling: what differs between points is what was changed
            rng, scale = generator(seed, head_dim), float(head_dim) ** power
            q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
            exact = dot_product_moments(head_dim, scale=scale)
            found = float(np.mean((read_logits(one.attend, q, k, scale=scale) - exact.mean) ** 2))
            error = exact.variance_standard_error(n_q, n_k) / math.sqrt(heads)
            where = {"scaling": scaling, "head_dim": head_dim}
            rows.append(one.row("variance", where, exact.variance, found, standard_error=error))
        yield from rows
        slope, error = log_log_slope(
            HEAD_DIMS, [row.measured for row in rows], [row.standard_error for row in rows]
        )
        yield one.row(SLOPE, {"scaling": scaling}, 1 + 2 * power, slope, standard_error=error)


def shared_direction(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Variances of scores whose tokens share a direction; and the weights with the shared part of the keys taken away.

    Each draw of tokens and projections is a cluster, and a head of the call.
    """
    rng = generator(seed, 1900)
    direction = rng.standard_normal((_DRAWS, 1, _MODEL_DIM))
    direction *= math.sqrt(_MODEL_DIM) / np.linalg.norm(direction, axis=-1, keepdims=True)
    own = rng.standard_normal((_DRAWS, _QUERIES + _KEYS, _MODEL_DIM))
    w_q, w_k = rng.standard_normal((2, _DRAWS, _MODEL_DIM, _HEAD_DIM)) / math.sqrt(_MODEL_DIM)
    scale = _HEAD_DIM**-0.5
    for share in SHARES:
        x = math.sqrt(share) * direction + math.sqrt(1 - share) * own
        q, k = ((x[:, :_QUERIES] @ w_q)[None], (x[:, _QUERIES:] @ w_k)[None])
        scores = read_logits(one.attend, q, k, scale=scale)[0]
        yield one.mean(OVER_WEIGHTS, {"shared": share}, (scores**2).reshape(_DRAWS, -1), 1.0)
        yield one.mean(IN_ROW, {"shared": share}, scores.var(axis=-1, ddof=1), 1 - share)
        alone = (math.sqrt(1 - share) * own[:, _QUERIES:] @ w_k)[None]
        both = (weights_of(one.attend, q, keys, scale=scale) for keys in (k, alone))
        changed = float(np.abs(np.subtract(*both)).max())
        # weights in float64, whose scores are of order 10
        quantity = "largest change of a weight without the shared part of the keys"
        yield one.row(quantity, {"shared": share}, 0.0, changed, slack=1e-12)


def conclusion(rows: Sequence[Row]) -> str:
    """The powers of d_k with which the variances grow, and both variances of tokens that share a direction."""
    slopes = pick(rows, SLOPE)

    def power(scaling: str) -> str:
        best = min(pick(slopes, scaling=scaling), key=lambda row: row.standard_error)
        return f"{best.measured:.3f} ± {2 * best.standard_error:.3f}".replace("-", "−")

    through = len({row.where["backend"] for row in slopes if "backend" in row.where})
    shared = ""
    for over, within in zip(
        *(pick(rows, name, shared=0.8)[:1] for name in (OVER_WEIGHTS, IN_ROW)), strict=True
    ):
        shared = (
            f"Of tokens with 80 % of |x|² in one shared direction the scaled scores have variance "
            f"{over.measured:.2f} over the weights and {within.measured:.2f} within a row (predicted "
            f"{over.predicted:g} and {within.predicted:.2g}), which alone the softmax sees: its weights are those of "
            "the keys without that direction. "
        )
    return (
        f"The variance of the logits grows as d_k to the power {power('unscaled')}; with 1/√d_k the power is "
        f"{power('scaled')}, with 1/d_k {power('μP')} (predicted 1, 0, −1; ± two standard errors), and the "
        f"same is read through {through} backends. {shared}{agreement(rows, 'the prediction')}."
    )


#: excess kurtosis up to which its axis is linear
_LINEAR = 0.03
_LINES = (
    ("unscaled", ORANGE, 1.0, "q·k:  Var = d_k", 0.05),
    ("scaled", BLUE, 0.0, "q·k/√d_k:  Var = 1", 1.6),
    ("μP", GREEN, -1.0, "q·k/d_k:  Var = 1/d_k", 12.0),
)


def draw(finding: Finding) -> Figure:
    """Variances, kurtosis, and the distance from the normal law, in both of its functions."""
    figure, (variance, kurtosis, characteristic, distribution) = figures.new_figure(
        2, 2, width=12.0, height=8.4
    )
    _variances(variance, pick(finding.rows, "variance"))
    _kurtosis(kurtosis, pick(finding.rows, "kurtosis of q·k"))
    _law(characteristic, pick(finding.rows, "characteristic function"), "t")
    _law(distribution, pick(finding.rows, "distribution function"), "x")
    title, dim = "The scale 1/√d_k keeps the variance of the logits at 1", "head dimension d_k"
    entitle(variance, title, dim, "variance of the logits")
    label = "excess kurtosis of q·k\n(dotted: linear within, logarithmic beyond)"
    entitle(kurtosis, "The tails become normal, unless anisotropic", dim, label)
    title = "The law of s = q·k/√d_k becomes normal as d_k grows"
    entitle(characteristic, title, "t", "E cos(t s) − exp(−t²/2)")
    entitle(distribution, "The same law, as a distribution function", "x", "P(s ≤ x) − Φ(x)")
    return figure


def _variances(panel: Axes, rows: Sequence[Row]) -> None:
    dims = np.array(sorted(set(values(rows, "head_dim"))) or [1.0, 2.0])
    for scaling, colour, power, label, lift in _LINES:
        panel.plot(dims, dims**power, color=colour, linewidth=1.6, zorder=2)
        note(panel, dims[-1], dims[-1] ** power * lift, label, colour, ha="right", va="bottom")
        panels.by_backend(panel, pick(rows, scaling=scaling), "head_dim", colour, named=scaling == "scaled")
    panel.set_yscale("log", base=2)
    figures.powers_of_two(panel, list(dims))
    legend(panel, fontsize=8, title="read through", title_fontsize=8, loc="lower left", ncols=2)


def _kurtosis(panel: Axes, rows: Sequence[Row]) -> None:
    families = list(dict.fromkeys(str(row.where["family"]) for row in rows))
    for family, colour in zip(families, CYCLE, strict=False):
        mine = [row for row in pick(rows, family=family) if float(row.where["head_dim"]) <= 256]
        steps = range(4, 33, 4) if family == "anisotropic" else range(33)
        dims = sorted({round(2 ** (step / 4)) for step in steps})
        panel.plot(
            dims, [FAMILIES[family].moments(d).kurtosis - 3 for d in dims], color=colour, linewidth=1.4
        )
        x, excess, errors = (
            values(mine, "head_dim"),
            values(mine, "measured") - 3,
            values(mine, "standard_error"),
        )
        points(panel, x, excess, errors, colour, markersize=4, label=family)
    panel.set_yscale("symlog", linthresh=_LINEAR)
    figures.powers_of_two(panel, [2.0**power for power in range(9)])
    panel.axhline(0, color=BLACK, linewidth=0.8)
    for edge in (-_LINEAR, _LINEAR):
        panel.axhline(edge, color=GREY, linestyle=":", linewidth=0.8)
    panel.set_ylim(bottom=-300)  # room for the legend below the lowest curve
    panel.set_yticks([-1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0])
    legend(panel, title="components", ncols=3, loc="lower center")


def _law(panel: Axes, rows: Sequence[Row], variable: str) -> None:
    """What the law has beyond the normal one, which lies at 0."""
    dims = sorted({int(row.where["head_dim"]) for row in rows})
    for head_dim, colour in zip(dims, CYCLE, strict=False):
        mine = pick(rows, head_dim=head_dim)
        at = values(mine, variable)
        x = np.linspace(min(at.min(), 0.0), at.max(), 241)
        law = score_characteristic_function if variable == "t" else score_cdf
        curve = law(x, head_dim, head_dim**-0.5) - _normal(variable, x)
        panel.plot(x, curve, color=colour, linewidth=1.4, label=f"{head_dim}")
        beyond = values(mine, "measured") - _normal(variable, at)
        points(panel, at, beyond, values(mine, "standard_error"), colour, markersize=4)
        if variable == "x" and head_dim > 4:
            continue  # too close to 0 and to each other for labels at the curve: they are in the legend
        top = int(np.argmax(curve))
        lift = 0.025 * (panel.get_ylim()[1] - panel.get_ylim()[0])
        # the lowest has no room for a label between its curve and the next
        y, side = (-2 * lift, "top") if head_dim == 64 else (curve[top] + lift, "bottom")
        note(panel, x[top], y, f"d_k = {head_dim}", colour, ha="center", va=side)
    panel.axhline(0, color=GREY, linewidth=1.2)
    if variable == "x":
        legend(panel, title="d_k", loc="lower right")
    low, high = panel.get_ylim()
    panel.set_ylim(low - 0.03 * (high - low), high + 0.08 * (high - low))


def _normal(variable: str, x: Array) -> Array:
    """The characteristic function of a standard normal number, of t, or its distribution function, of x."""
    if variable == "t":
        return np.asarray(np.exp(-(x**2) / 2))
    return np.array([0.5 * math.erfc(-float(one) / math.sqrt(2)) for one in x])


EXPERIMENT = Experiment(
    title="The variance of the logits",
    question="Does Var(q·k) grow as d_k, and does the scale 1/√d_k keep it at 1?",
    theory="A logit is the dot product of a query and a key, q·k = Σ_c q_c k_c, over d_k components. Where "
    "these are independent with mean 0 and variances σ_q² and σ_k², its variance is d_k σ_q² σ_k², whatever "
    "their distribution is. Its kurtosis is 3 + (κ_q κ_k − 3)/d_k, κ being that of the components: it tends "
    "to the normal law's as d_k grows, and the product of normal queries with keys of ±1 is exactly normal "
    "at every d_k. At σ_q = σ_k = 1 the factor 1/√d_k leaves a variance of 1, and 1/d_k, the scale of μP, "
    "leaves 1/d_k. Logits of one matrix share queries and keys; the standard errors allow for that.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Lines are theory, points are measured. Top left: variance of the logits read through each "
    "backend, at three scales. Top right: excess kurtosis of q·k for seven families of components; a normal "
    "law has 0. Bottom: how far the law of q·k/√d_k is from the normal one, by its characteristic function "
    "and its distribution function, for normal components. Bars are five standard errors.",
    lesson="Divide by √d_k where the components have unit variance and mean 0. The factor removes d_k and "
    "nothing else: components of standard deviation σ leave a variance of σ⁴, means that are not 0 add to it, and "
    'components of unequal variance ("anisotropic") count for fewer dimensions than they are: where few of them '
    "dominate, as in the family shown, the law does not become normal however large d_k is.",
    shown=(
        Shown("variance", {"head_dim": (4, 64, 1024)}),
        Shown("slope of ln variance on ln d_k", {"family": None}),
        Shown("kurtosis of q·k", {"family": "normal", "head_dim": (1, 16, 64)}),
        Shown("variance of the scores over the weights", {"shared": 0.8}),
        Shown("variance of the scores within a row", {"shared": 0.8}),
    ),
)
