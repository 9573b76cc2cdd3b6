"""The variance of the logits against d_k at three scales, and the law of q·k.

Every logit is read out of a backend's weights (`read_logits`) and its variance held against the exact one, with the
standard error that many rows sharing few queries and keys really have.

The rest of the law needs no backend: dot products are drawn by the hundred million. Queries and keys come in blocks,
every query of a block meets every key of it, and only three sums of each block are kept: the speed of a matrix product,
in little memory. Blocks are independent, so their spread is the error of any statistic, however its block's rows share
queries and keys.

Tokens may share a direction: each is √(a d_model) u + √(1 − a) z with one unit vector u for all and z standard normal,
so that E|x|² = d_model whatever a is, and with projections of variance 1/d_model a scaled score has variance 1 over the
weights. Within a row the shared part of the keys adds one number to all scores, which the softmax takes away again:
what is left has variance 1 − a. Trained tokens share much (Ethayarajh 2019, 1909.00512, measures cosines up to .99
between unrelated words).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab import figures
from attnlab.figures import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, entitle, legend, note, points
from attnlab.lab import panels
from attnlab.lab.finding import Array, Experiment, Finding, Row, Shown, Where, pick, values
from attnlab.lab.observables import read_logits, weights_of
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator
from attnlab.lab.theory import (
    DotProductMoments,
    dot_product_moments,
    score_cdf,
    score_characteristic_function,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Single = NDArray[np.float32]
Draw = Callable[[np.random.Generator, tuple[int, int]], Single]
#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
#: queries, and keys, of a block: large enough for a fast matrix product, small enough to stay in cache
BLOCK = 512
#: independent blocks of BLOCK² dot products a point, and of the wide family
BLOCKS, WIDE_BLOCKS = 36, 10
HEAD_DIMS = tuple(2**power for power in range(11))
FAMILY_HEAD_DIMS, LAW_HEAD_DIMS, WIDE_HEAD_DIMS = (4, 32, 256), (1, 4, 16, 64), (16, 256)
#: independent dot products for the law, at each head dimension
PAIRS = 2**16
#: float32 products and sums are good to this, relatively
_ROUNDING = 2e-5
#: independent heads, and queries and keys in each: 131,072 logits a point; a slow backend gets the second
_SIZES, _SLOW_SIZES = (32, 64, 64), (8, 16, 16)
#: of |x|², in the direction that tokens share
SHARES = (0.0, 0.5, 0.8, 0.95)
#: draws of the projections, tokens that ask and that are asked, dimensions of a token and of a head
_DRAWS, _QUERIES, _KEYS, _MODEL_DIM, _HEAD_DIM = 96, 12, 24, 128, 32
SLOPE, VARIANCE, KURTOSIS = "slope of ln variance on ln d_k", "variance of q·k", "kurtosis of q·k"
CHARACTERISTIC, DISTRIBUTION = "characteristic function", "distribution function"
OVER_WEIGHTS, IN_ROW = "variance of the scores over the weights", "variance of the scores within a row"


@dataclass(frozen=True)
class Family:
    """How the components of q and of k are drawn, and the exact moments of the unscaled q·k at a head dimension."""

    query: Draw
    key: Draw
    moments: Callable[[int], DotProductMoments]


def _family(query: Draw, key: Draw | None = None, **known: Any) -> Family:
    """Independent components, `known` of them for `dot_product_moments`; keys are drawn as queries are, or by `key`."""
    return Family(query, key or query, lambda head_dim: dot_product_moments(head_dim, **known))


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.standard_normal(shape, dtype=np.float32)


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return (rng.random(shape, dtype=np.float32) - np.float32(0.5)) * np.float32(math.sqrt(12))


def _rademacher(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.integers(0, 2, shape, dtype=np.int8).astype(np.float32) * 2 - 1


def _laplace(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    # an exponential with a random sign; variance 2b² = 1
    size = rng.standard_exponential(shape, dtype=np.float32) * np.float32(math.sqrt(0.5))
    return size * _rademacher(rng, shape)


def decaying_variances(head_dim: int) -> Array:
    """Variances 1/c of component c, scaled to mean 1: few directions carry most, as in trained heads."""
    raw: Array = np.arange(1, head_dim + 1, dtype=np.float64) ** -1.0
    return raw * (head_dim / float(raw.sum()))


def _anisotropic(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return _normal(rng, shape) * np.sqrt(decaying_variances(shape[1])).astype(np.float32)


def _anisotropic_moments(head_dim: int) -> DotProductMoments:
    covariance = np.diag(decaying_variances(head_dim))
    return dot_product_moments(head_dim, query_covariance=covariance, key_covariance=covariance)


#: with zero mean and unit variance a component, but for the shifted ones, whose mean is ½
FAMILIES: Mapping[str, Family] = {
    "normal": _family(_normal),
    "uniform": _family(_uniform, query_kurtosis=1.8, key_kurtosis=1.8),
    "Rademacher": _family(_rademacher, query_kurtosis=1.0, key_kurtosis=1.0),
    "Laplace": _family(_laplace, query_kurtosis=6.0, key_kurtosis=6.0),
    # a sum of normal numbers with random signs: exactly normal at every dimension
    "normal × Rademacher": _family(_normal, _rademacher, query_kurtosis=3.0, key_kurtosis=1.0),
    "shifted means": _family(
        lambda rng, shape: _normal(rng, shape) + np.float32(0.5), query_mean=0.5, key_mean=0.5
    ),
    "anisotropic": Family(_anisotropic, _anisotropic, _anisotropic_moments),
}
WIDE = _family(lambda rng, shape: 2 * _normal(rng, shape), query_std=2.0, key_std=2.0)
#: dot products drawn in blocks in one run
DOT_PRODUCTS = BLOCK**2 * (
    (len(HEAD_DIMS) + len(FAMILY_HEAD_DIMS) * (len(FAMILIES) - 1)) * BLOCKS
    + len(WIDE_HEAD_DIMS) * WIDE_BLOCKS
)


def measure(survey: Survey) -> None:
    """Var(logit) against d_k, for three scalings, read through each backend in float64; and the law of q·k.

    Prediction: scale²·d_k for standard normal q and k, and `attnlab.theory` for the rest. Measured: the mean of s² over
    all logits, its mean being 0 by symmetry. Standard error: `DotProductMoments.variance_standard_error`.
    """
    survey.facts["dot products sampled"] = DOT_PRODUCTS
    survey.rows += sampled_rows(survey.seed)
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
            *(values(rows, name) for name in ("head_dim", "measured", "standard_error"))
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


def log_log_slope(x: Array, y: Array, y_error: Array) -> tuple[float, float]:
    """Slope of ln y on ln x and its standard error, each point weighted by 1/(relative error)².

    Points are independent, the errors known and small beside y (weighted least squares; Press et al., Numerical
    Recipes, section 15.2).
    """
    (slope, _), covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / y_error, cov="unscaled")
    return float(slope), math.sqrt(covariance[0, 0])


def sampled_rows(seed: int) -> Iterator[Row]:
    """All rows that need no backend."""
    for number, (label, family) in enumerate(FAMILIES.items()):
        dims, rows = HEAD_DIMS if label == "normal" else FAMILY_HEAD_DIMS, list[Row]()
        for head_dim in dims:
            drawn = sample_moments(family, head_dim, BLOCKS, generator(seed, 100 + number, head_dim))
            rows += _moments(family, {"family": label, "head_dim": head_dim}, drawn)
        yield from rows
        if label == "normal":
            variances = pick(rows, VARIANCE)
            x, y, error = (values(variances, name) for name in ("head_dim", "measured", "standard_error"))
            for scaling, power in SCALINGS.items():
                slope, slope_error = log_log_slope(x, y * x ** (2 * power), error * x ** (2 * power))
                where = {"family": label, "scaling": scaling}
                yield Row.compare(SLOPE, where, 1 + 2 * power, slope, standard_error=slope_error)
    for head_dim in WIDE_HEAD_DIMS:
        wide = sample_moments(WIDE, head_dim, WIDE_BLOCKS, generator(seed, 150, head_dim))
        yield _variance(WIDE, {"family": "normal, σ = 2", "head_dim": head_dim, "sigma": 2.0}, wide)
    for head_dim in LAW_HEAD_DIMS:
        yield from _law_rows(head_dim, seed)


def sample_moments(family: Family, head_dim: int, blocks: int, rng: np.random.Generator) -> Array:
    """Means of s − m, its square and its fourth power over each block of BLOCK² dot products s: (3, blocks).

    m is the exact mean of s. Memory: two blocks of vectors and two of scores, whatever the number.
    """
    mean, sums = np.float32(family.moments(head_dim).mean), np.empty((3, blocks))
    products, squares = np.empty((BLOCK, BLOCK), np.float32), np.empty((BLOCK, BLOCK), np.float32)
    for block in range(blocks):
        q, k = (draw(rng, (BLOCK, head_dim)) for draw in (family.query, family.key))
        np.matmul(q, k.T, out=products)
        if mean:
            np.subtract(products, mean, out=products)
        np.multiply(products, products, out=squares)
        # BLAS's dot keeps several partial sums: its rounding, some 1e-6, is far below the sampling error
        sums[:, block] = products.sum(), squares.sum(), np.dot(squares.ravel(), squares.ravel())
    return sums / BLOCK**2


def _moments(family: Family, where: Where, drawn: Array) -> Iterator[Row]:
    """Mean, variance and kurtosis of one family at one d_k.

    Of the kurtosis E(s − m)⁴/Var² the error is the jackknife's over blocks (Efron and Tibshirani 1993, ch. 11).
    """
    exact, (first, second, fourth) = family.moments(where["head_dim"]), drawn
    count = len(first)
    if exact.mean:
        found, error = exact.mean + first.mean(), float(first.std(ddof=1)) / math.sqrt(count)
        yield Row.compare("mean of q·k", where, exact.mean, found, standard_error=error)
    yield _variance(family, where, drawn)
    # the means without each block in turn
    rest_2, rest_4 = ((one.sum() - one) / (count - 1) for one in (second, fourth))
    error, slack = math.sqrt((count - 1) * float(np.var(rest_4 / rest_2**2))), _ROUNDING * exact.kurtosis
    found = fourth.mean() / second.mean() ** 2
    yield Row.compare(KURTOSIS, where, exact.kurtosis, found, standard_error=error, slack=slack)


def _variance(family: Family, where: Where, drawn: Array) -> Row:
    exact, found = family.moments(where["head_dim"]), float(drawn[1].mean())
    error = exact.variance_standard_error(BLOCK, BLOCK) / math.sqrt(drawn.shape[1])
    slack = _ROUNDING * exact.variance
    return Row.compare(VARIANCE, where, exact.variance, found, standard_error=error, slack=slack)


def _law_rows(head_dim: int, seed: int) -> Iterator[Row]:
    """The law of q·k/√d_k from independent pairs: its characteristic function, and its distribution function."""
    unit, rng, parts = head_dim**-0.5, generator(seed, 300, head_dim), []
    for start in range(0, PAIRS, chunk := 2**21 // head_dim):
        q, k = (_normal(rng, (min(chunk, PAIRS - start), head_dim)) for _ in range(2))
        parts.append(np.einsum("nc,nc->n", q, k, dtype=np.float64))
    scores, where = np.sort(np.concatenate(parts)) * unit, {"family": "normal", "head_dim": head_dim}
    for t in (0.5, 1.0, 1.5, 2.0, 3.0):
        # cos² = (1 + cos 2t)/2, so that the variance of the mean is known exactly
        value, double = score_characteristic_function([t, 2 * t], head_dim, unit)
        error, found = math.sqrt(((1 + double) / 2 - value**2) / PAIRS), np.cos(t * scores).mean()
        yield Row.compare(CHARACTERISTIC, {**where, "t": t}, value, found, standard_error=error)
    upper = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    points = np.array([*(-x for x in reversed(upper)), 0.0, *upper])
    below = np.searchsorted(scores, points, side="right") / PAIRS
    for x, expected, share in zip(points, score_cdf(points, head_dim, unit), below, strict=True):
        error = math.sqrt(expected * (1 - expected) / PAIRS)
        yield Row.compare(DISTRIBUTION, {**where, "x": float(x)}, expected, share, standard_error=error)


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


#: families whose tails are heavier than the normal law's by so much that a logarithmic axis shows them
_HEAVY = ("normal", "Laplace", "shifted means", "anisotropic")
_LINES = (
    ("unscaled", ORANGE, 1.0, "q·k:  Var = d_k", 0.05),
    ("scaled", BLUE, 0.0, "q·k/√d_k:  Var = 1", 1.6),
    ("μP", GREEN, -1.0, "q·k/d_k:  Var = 1/d_k", 12.0),
)


def draw(finding: Finding) -> Figure:
    """Variances, kurtosis, and the distance from the normal law, in both of its functions."""
    figure, (variance, heavy, light, characteristic, distribution, spare) = figures.new_figure(
        3, 2, width=15.0, height=8.4
    )
    _variances(variance, pick(finding.rows, "variance"))
    spare.set_axis_off()
    backends = variance.get_legend_handles_labels()
    spare.legend(*backends, title="variances were read through", loc="center", ncols=2, frameon=False)
    for panel in (heavy, light):
        _kurtosis(panel, pick(finding.rows, KURTOSIS), heavy=panel is heavy)
    _law(characteristic, pick(finding.rows, CHARACTERISTIC), "t")
    _law(distribution, pick(finding.rows, DISTRIBUTION), "x")
    title, dim = "The scale 1/√d_k keeps the variance of the logits at 1", "head dimension d_k"
    entitle(variance, title, dim, "variance of the logits")
    label = "excess kurtosis of q·k, "
    entitle(heavy, "Heavy tails become normal, unless anisotropic", dim, label + "log scale")
    entitle(light, "Light tails become normal too", dim, label + "linear scale")
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


def _kurtosis(panel: Axes, rows: Sequence[Row], *, heavy: bool) -> None:
    families = list(dict.fromkeys(str(row.where["family"]) for row in rows))
    for family, colour, marker in zip(families, CYCLE, figures.MARKERS, strict=False):
        if (family in _HEAVY) is not heavy:
            continue
        mine = [row for row in pick(rows, family=family) if float(row.where["head_dim"]) <= 256]
        steps = range(4, 33, 4) if family == "anisotropic" else range(33)
        dims = sorted({round(2 ** (step / 4)) for step in steps})
        panel.plot(
            dims, [FAMILIES[family].moments(d).kurtosis - 3 for d in dims], color=colour, linewidth=1.4
        )
        x, found, errors = (values(mine, name) for name in ("head_dim", "measured", "standard_error"))
        points(panel, x, found - 3, errors, colour, fmt=marker, label=family)
    if heavy:
        panel.set_yscale("log")
        panel.set_ylim(bottom=0.01)
    else:
        panel.axhline(0, color=BLACK, linewidth=0.8)
    figures.powers_of_two(panel, [2.0**power for power in range(9)])
    legend(panel, title="components", loc="lower left" if heavy else "lower right")


def _law(panel: Axes, rows: Sequence[Row], variable: str) -> None:
    """What the law has beyond the normal one, which lies at 0."""
    dims = sorted({int(row.where["head_dim"]) for row in rows})
    for head_dim, colour in zip(dims, CYCLE, strict=False):
        mine = pick(rows, head_dim=head_dim)
        at = values(mine, variable)
        x = np.linspace(min(at.min(), 0.0), at.max(), 241)
        law = score_characteristic_function if variable == "t" else score_cdf
        curve = law(x, head_dim, head_dim**-0.5) - _normal_law(variable, x)
        panel.plot(x, curve, color=colour, linewidth=1.4, label=f"{head_dim}")
        beyond = values(mine, "measured") - _normal_law(variable, at)
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


def _normal_law(variable: str, x: Array) -> Array:
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
    "leaves 1/d_k. This is the variance over all pairs. A softmax sees one query's row, of variance d_k (σ_q² + μ_q²) "
    "σ_k² unscaled: there a mean μ_k of the keys adds one number to all logits. Logits of one matrix share queries and "
    "keys; the standard errors allow for that.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Lines are theory, points are measured. Top left: variance of the logits read through each "
    "backend, at three scales. Top middle and right: excess kurtosis of q·k for seven families of components, the "
    "heavy tails on a logarithmic axis, the others on a linear one; a normal law has 0. Bottom: how far the law of "
    "q·k/√d_k is from the normal one, by its characteristic function and its distribution function, for normal "
    "components. Bars are five standard errors; an arrow stands where one goes on.",
    lesson="Divide by √d_k where the components have unit variance and mean 0. The factor removes d_k and "
    "nothing else: components of standard deviation σ leave a variance of σ⁴, a mean of the queries spreads every row, "
    'and components of unequal variance ("anisotropic") count for fewer dimensions than they are: where few of them '
    "dominate, as in the family shown, the law does not become normal however large d_k is.",
    shown=(
        Shown("variance", {"head_dim": (4, 64, 1024)}),
        Shown("slope of ln variance on ln d_k", {"family": None}),
        Shown("kurtosis of q·k", {"family": "normal", "head_dim": (1, 16, 64)}),
        Shown("variance of the scores over the weights", {"shared": 0.8}),
        Shown("variance of the scores within a row", {"shared": 0.8}),
    ),
)
