"""A small transformer trained with the factor 1/√d_k, without it, and with what may stand in for it.

At each d_k and each learning rate some runs learn the task and some do not. What is compared is their share over the
same learning rates, and at the learning rate that is best for each way to make the scores: a change that merely wants
another learning rate shows in the first alone. The best is chosen on one half of the seeds and judged on the other,
both ways round, so that luck in the choice is not counted. Runs of one seed start alike and see the same data.

The task (Ba et al. 2016, 1610.06258; Arora et al. 2023, 2312.04927): a sequence of pairs of a key and a value, drawn
anew each time, and then the keys again in any order; at each of them the value is asked that this sequence paired with
it. It cannot be answered without looking back at the pair. A pair is one token, the sum of its two embeddings, so that
one layer of attention is enough.

The model: embeddings; attention from the keys that are asked to the pairs, and an MLP, each on normalised tokens and
added to them (pre-norm); a norm and an output layer.

`torch.func.vmap` turns the gradient of one run into that of all. By Adam (Kingma and Ba 2015, 1412.6980), which divides
each gradient by its own size, so that a factor on all of them changes nothing; or by gradient descent with momentum
(Polyak 1964), which does not. The learning rate is constant: no warm-up, no clipping and no weight decay, each of which
hides what is looked for here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.functional import cross_entropy, gelu, softmax

from attnlab import figures
from attnlab.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, entitle
from attnlab.lab.finding import Array, Experiment, Finding, Row, Shown, Where, pick, values
from attnlab.lab.survey import Survey, generator, mean_over_clusters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCALED, NONE, FULL, NORMED, CAPPED, SMALL = (
    "1/√d_k", "none", "1/d_k", "QK-norm", "soft cap", "none, small weights",
)  # fmt: skip
UNIFORM = "uniform weights"
#: keys and values that there are, pairs of one sequence, sequences of one step
KEYS, VALUES, PAIRS, BATCH = 32, 16, 16, 8
MODEL_DIM, MLP_DIM = 32, 64
#: keeps the square root of a zero vector's size from being divided by
_NEVER_ZERO = 1e-6
ADAM, MOMENTUM = "Adam", "momentum"
_KEPT, _SQUARES_KEPT, _EPSILON = 0.9, 0.999, 1e-8
#: of the steps, over which the end of a run is averaged
_LAST = 0.1
#: share of right answers from which on the task counts as learned
LEARNED = 0.9
#: the smallest whole number with which one of 16 weights can pass .999: 1/(1 + 15 e^−2c)
_CAP = 5.0
SHARE, DIVERGED, BEST = "share of runs that learned", "share of runs that diverged", "best learning rate"
SHARE_AT_BEST, STEPS = "share of runs that learned at their best learning rate", "steps to learn, median"
MORE = "learned with 1/√d_k − without"
MORE_AT_BEST = f"{MORE}, at the best learning rates"
START = "mean square of the scores at the start"
#: what is followed step by step, at the best learning rate
CURVES: Mapping[str, str] = {
    "loss": "loss",
    "entropy": "entropy of the weights / ln n",
    "gradient": "norm of the gradient",
    "query_key_gradient": "norm of the gradient of W_q and W_k",
}
_STARTS = 96


Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Attention:
    """How weights come from q·k: softmax(cap·tanh(scale · q·k / cap)), of normalised q and k where `normed`.

    name : of this way to make scores. shrunk : what both projections' weights are multiplied by at the start.
    """

    name: str
    head_dim: int
    scale: float
    shrunk: float = 1.0
    cap: float = math.inf
    normed: bool = False


def start(attention: Attention, seed: int) -> dict[str, Tensor]:
    """The parameters of one run: matrices that preserve variance, embeddings of variance 1, gains of 1.

    Every attention of the same sizes starts from the same draws.
    """
    source = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=source) / math.sqrt(rows)

    inner, dim, embedded = attention.head_dim, MODEL_DIM, (("keys", KEYS), ("values", VALUES))
    found = {f"embedding of {name}": torch.randn(size, dim, generator=source) for name, size in embedded}
    found |= {"value": matrix(dim, dim), "output": matrix(dim, dim), "widen": matrix(dim, MLP_DIM)}
    found |= {"narrow": matrix(MLP_DIM, dim), "guess": matrix(dim, VALUES)}
    found |= {name: attention.shrunk * matrix(dim, inner) for name in ("query", "key")}
    return found | {f"{name} gain": torch.ones(inner) for name in ("query", "key")}


def sequences(source: torch.Generator) -> Tensor:
    """Keys, values and the places that are asked for, (3, batch, pairs). All keys of a sequence differ."""
    keys, asked = (
        torch.rand(BATCH, count, generator=source).argsort(-1)[:, :PAIRS] for count in (KEYS, PAIRS)
    )
    return torch.stack([keys, torch.randint(VALUES, (BATCH, PAIRS), generator=source), asked])


def normalised(x: Tensor) -> Tensor:
    """Every vector at |x|² = its dimension (Zhang and Sennrich 2019, 1910.07467, without a gain)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _NEVER_ZERO)


def scores(parameters: Parameters, attention: Attention, x: Tensor, pairs: Tensor) -> Tensor:
    """The scores of one head, (batch, asked, pairs). x, pairs : (batch, length, d_model), normalised."""
    q, k = x @ parameters["query"], pairs @ parameters["key"]
    if attention.normed:
        q, k = normalised(q) * parameters["query gain"], normalised(k) * parameters["key gain"]
    s = attention.scale * (q @ k.transpose(-1, -2))
    return s if math.isinf(attention.cap) else attention.cap * torch.tanh(s / attention.cap)


def tokens(parameters: Parameters, batch: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs, normalised, and the keys that are asked, (batch, pairs, d_model) each."""
    keys, values, asked = batch
    named = parameters["embedding of keys"]
    pairs = normalised(named[keys] + parameters["embedding of values"][values])
    return pairs, named[keys.gather(-1, asked)]


def loss(parameters: Parameters, attention: Attention, batch: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The cross-entropy of the guesses in nats; and the share that is right, and the mean entropy of the weights.

    batch : of `sequences`.
    """
    pairs, x = tokens(parameters, batch)
    weights = softmax(scores(parameters, attention, normalised(x), pairs), dim=-1)
    x = x + weights @ (pairs @ parameters["value"]) @ parameters["output"]
    x = x + gelu(normalised(x) @ parameters["widen"]) @ parameters["narrow"]
    guesses, right = normalised(x) @ parameters["guess"], batch[1].gather(-1, batch[2])
    cost = cross_entropy(guesses.flatten(0, 1), right.flatten())
    accuracy = (guesses.argmax(-1) == right).float().mean()
    return cost, (accuracy, torch.special.entr(weights).sum(-1).mean())


@dataclass(frozen=True)
class Runs:
    """All runs of one way to make scores by one optimiser.

    What they showed at each step before it was taken, (steps, learning rates, seeds) each. entropy : mean of the
    weights', in nats. gradient : its norm; query_key_gradient : that of the weights which make queries and keys.
    """

    attention: Attention
    optimiser: str
    rates: Sequence[float]
    loss: Array
    accuracy: Array
    entropy: Array
    gradient: Array
    query_key_gradient: Array

    @property
    def final_loss(self) -> Array:
        """The mean over the last tenth of the steps, (learning rates, seeds); infinite where one is not finite."""
        mean = self.loss[-self._last :].mean(axis=0)
        return np.where(np.isfinite(self.loss).all(axis=0), mean, np.inf)

    @property
    def learned(self) -> NDArray[np.bool_]:
        """Whether at least `LEARNED` of the answers are right in the last tenth of the steps, (rates, seeds)."""
        right = self.accuracy[-self._last :].mean(axis=0) >= LEARNED
        return np.asarray(right & np.isfinite(self.final_loss))

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Whether the loss is not finite, or ends above ln(values), that of knowing nothing: (rates, seeds)."""
        return np.asarray((self.final_loss > np.log(VALUES)) & ~self.learned)

    @property
    def steps_to_learn(self) -> NDArray[np.int64]:
        """Steps before `LEARNED` of the answers are right over ten steps, all steps where never: (rates, seeds)."""
        total = np.cumsum(self.accuracy, axis=0)
        right = total[10:] - total[:-10] >= 10 * LEARNED
        return np.where(right.any(axis=0), right.argmax(axis=0) + 10, len(self.loss))

    @property
    def _last(self) -> int:
        return max(1, round(_LAST * len(self.loss)))

    @property
    def where(self) -> Where:
        """What tells it apart."""
        return {
            "optimiser": self.optimiser,
            "head_dim": self.attention.head_dim,
            "scores": self.attention.name,
        }

    @property
    def best(self) -> int:
        """Place of the learning rate with the smallest mean loss at the end."""
        return int(np.argmin(self.final_loss.mean(axis=1)))

    @property
    def learned_at_best(self) -> Array:
        """Whether each seed's run learned, (seeds,), at the rate that is best for the other half of the seeds."""
        even = np.arange(self.loss.shape[2]) % 2 == 0
        found = np.empty(len(even))
        for half in (even, ~even):
            chosen = int(np.argmin(self.final_loss[:, ~half].mean(axis=1)))
            found[half] = self.learned[chosen, half]
        return found


def train(
    attention: Attention, rates: Sequence[float], seeds: Sequence[int], steps: int, optimiser: str = ADAM
) -> Runs:
    """Every learning rate with every seed. Runs of one seed start alike and see the same sequences."""
    started = [start(attention, seed) for seed in seeds]
    weights = {
        name: torch.stack([one[name] for one in started]).repeat(len(rates), *[1] * started[0][name].dim())
        for name in started[0]
    }
    every_rate = torch.tensor(rates).repeat_interleave(len(seeds))
    means, squares = ({name: torch.zeros_like(one) for name, one in weights.items()} for _ in range(2))
    sources = [torch.Generator().manual_seed(seed + 2**32) for seed in seeds]
    derive = vmap(grad_and_value(lambda parameters, batch: loss(parameters, attention, batch), has_aux=True))
    seen: list[tuple[Tensor, ...]] = []
    for step in range(1, steps + 1):
        batches = torch.stack([sequences(source) for source in sources]).repeat(len(rates), 1, 1, 1)
        gradients, (cost, (accuracy, entropy)) = derive(weights, batches)
        sizes = {name: one.square().flatten(1).sum(-1) for name, one in gradients.items()}
        whole, part = torch.as_tensor(sum(sizes.values())), sizes["query"] + sizes["key"]
        seen.append((cost, accuracy, entropy, whole.sqrt(), part.sqrt()))
        for name, gradient in gradients.items():
            if optimiser == ADAM:
                mean = means[name].lerp_(gradient, 1 - _KEPT)
                square = squares[name].lerp_(gradient.square(), 1 - _SQUARES_KEPT)
                size = (square / (1 - _SQUARES_KEPT**step)).sqrt_().add_(_EPSILON)
                change = mean / (1 - _KEPT**step) / size
            else:
                change = means[name].mul_(_KEPT).add_(gradient)
            weights[name] -= every_rate.reshape(-1, *[1] * (change.dim() - 1)) * change
    shape = (steps, len(rates), len(seeds))
    showed = (torch.stack(one).double().numpy().reshape(shape) for one in zip(*seen, strict=True))
    return Runs(attention, optimiser, rates, *showed)


# -- which runs there are, and what is made of them ---------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Which runs there are: `rates` for Adam, `momentum_rates` for gradient descent at `momentum_dim` alone."""

    head_dims: tuple[int, ...] = (16, 64, 256)
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    momentum_rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    momentum_dim: int = 64
    seeds: int = 8
    steps: int = 300


def ways(head_dim: int) -> tuple[Attention, ...]:
    """The ways to make scores that are compared.

    QK-norm (Henry et al. 2020, 2010.04245; Dehghani et al. 2023, 2302.05442) normalises q and k, with a gain that is
    learned, and scales by 1/√d_k; the cap is put on unscaled scores; small weights are those of T5 (Raffel et al.
    2020, 1910.10683), which start the scores as large as 1/√d_k would.
    """
    root = head_dim**-0.5
    return (
        Attention(SCALED, head_dim, root),
        Attention(NONE, head_dim, 1.0),
        Attention(FULL, head_dim, 1 / head_dim),
        Attention(NORMED, head_dim, root, normed=True),
        Attention(CAPPED, head_dim, 1.0, cap=_CAP),
        Attention(SMALL, head_dim, 1.0, shrunk=head_dim**-0.25),
    )


def measure(survey: Survey, grid: Grid | None = None) -> None:
    """Runs that learned, by way to make scores, d_k, learning rate and optimiser; and what they showed step by step."""
    grid = grid or Grid()
    seeds = [int(one) for one in generator(survey.seed, 1800).integers(2**31, size=grid.seeds)]
    survey.facts |= {"runs of each": grid.seeds, "steps": grid.steps, "computed by": "PyTorch, float32"}
    for head_dim in grid.head_dims:
        survey.rows += _starts(head_dim, survey.seed)
    compared: list[Row] = []
    for optimiser, dims, rates in (
        (ADAM, grid.head_dims, grid.rates),
        (MOMENTUM, (grid.momentum_dim,), grid.momentum_rates),
    ):
        groups = [
            train(attention, rates, seeds, grid.steps, optimiser)
            for head_dim in dims
            for attention in ways(head_dim)
            if optimiser == ADAM or attention.name in (SCALED, NONE, FULL)
        ]
        survey.rows += [row for runs in groups for row in _rows_of(runs)]
        compared += _compared(groups)
    # with weights that cannot differ: where the task could be learned so, it would tell nothing of attention
    alone = train(Attention(UNIFORM, grid.head_dims[0], 0.0), grid.rates, seeds, grid.steps)
    where = {**alone.where, "runs": alone.learned.size}
    survey.rows += [_share(SHARE, where, alone.learned.ravel()), *compared]


def _starts(head_dim: int, seed: int) -> Iterator[Row]:
    """E s² before the first step: d_k scale² shrunk⁴, the weights being independent of tokens of fixed length."""
    for attention in ways(head_dim):
        if attention.normed or not math.isinf(attention.cap):
            continue
        squares = []
        for number in map(int, generator(seed, 1810, head_dim).integers(2**31, size=_STARTS)):
            parameters = start(attention, number)
            drawn = sequences(torch.Generator().manual_seed(number + 1))
            pairs, x = tokens(parameters, drawn)
            found = scores(parameters, attention, normalised(x), pairs)
            squares.append([float(found.double().square().mean())])
        mean, error = mean_over_clusters(np.array(squares))
        where = {"head_dim": head_dim, "scores": attention.name}
        yield Row.compare(START, where, None, mean, standard_error=error)


def _rows_of(runs: Runs) -> Iterator[Row]:
    """Shares by learning rate, and at the best one the share, the steps to learn and the curves."""
    (steps, _, count), best = runs.loss.shape, runs.best
    where = {**runs.where, "runs": count}
    for place, rate in enumerate(runs.rates):
        at = {**runs.where, "learning rate": rate, "runs": count}
        yield _share(SHARE, at, runs.learned[place])
        yield _share(DIVERGED, at, runs.diverged[place])
    yield Row.compare(BEST, where, None, runs.rates[best])
    yield _share(SHARE_AT_BEST, where, runs.learned_at_best)
    yield Row.compare(STEPS, where, None, float(np.median(runs.steps_to_learn[best])))
    # stretches of steps, each about 1.8 times as far as the one before
    ends = sorted({min(steps, round(1.8**power)) for power in range(1 + math.ceil(math.log(steps, 1.8)))})
    for name, quantity in CURVES.items():
        seen = getattr(runs, name)[:, best] / (math.log(PAIRS) if name == "entropy" else 1.0)
        for first, last in zip([0, *ends], ends, strict=False):
            mean, error = mean_over_clusters(seen[first:last].T)
            yield Row.compare(quantity, {**where, "step": last}, None, mean, standard_error=error)


def _share(quantity: str, where: Where, outcomes: NDArray[np.generic]) -> Row:
    """The share of runs. Its standard error is half of Wilson's interval: not 0 where all came out alike."""
    happened, count = int(np.sum(outcomes)), len(outcomes)
    low, high = interval(happened, count, math.erf(math.sqrt(0.5)))  # one standard error to either side
    return Row.compare(quantity, where, None, happened / count, standard_error=(high - low) / 2)


def interval(happened: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share (1927): `happened` of `count`."""
    from scipy.stats import binomtest

    found = binomtest(happened, count).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def _compared(groups: Sequence[Runs]) -> Iterator[Row]:
    """Runs that learned with 1/√d_k less those that learned otherwise, over all d_k and each alone.

    At equal learning rates, and at the best of each. Seeds are the clusters: all their runs share start and data.
    """
    # whether each seed's runs learned, (seeds,): the share of the learning rates, and at the best
    learned = {
        (one.attention.head_dim, one.attention.name): (one.learned.mean(axis=0), one.learned_at_best)
        for one in groups
    }
    dims = tuple(dict.fromkeys(one.attention.head_dim for one in groups))
    names = dict.fromkeys(one.attention.name for one in groups)
    for other in [name for name in names if name != SCALED]:
        for chosen in dict.fromkeys((dims, *((one,) for one in dims))):
            for at, quantity in enumerate((MORE, MORE_AT_BEST)):
                more = [learned[dim, SCALED][at] - learned[dim, other][at] for dim in chosen]
                mean, error = mean_over_clusters(np.mean(more, axis=0)[:, None])
                dim = "all" if len(chosen) > 1 else chosen[0]
                where = {"optimiser": groups[0].optimiser, "instead": other, "head_dim": dim}
                yield Row.compare(quantity, where, None, mean, standard_error=error)


def conclusion(rows: Sequence[Row]) -> str:
    """Shares at equal and at the best learning rates, steps to learn, and the other optimiser."""
    best_rates = pick(rows, BEST, optimiser=ADAM)
    dims, names = (
        list(dict.fromkeys(row.where[key] for row in best_rates)) for key in ("head_dim", "scores")
    )
    shares = [row for row in pick(rows, SHARE, optimiser=ADAM) if "learning rate" in row.where]
    rates = list(dict.fromkeys(float(row.where["learning rate"]) for row in shares))

    def mean(quantity: str, optimiser: str, name: str | float, dim: str | float) -> float:
        found = pick(rows, quantity, optimiser=optimiser, scores=name, head_dim=dim)
        return float(values(found, "measured").mean())

    def listed(quantity: str, unit: float) -> str:
        """The figure by way to make scores and d_k, by Adam."""
        each = (", ".join(f"{unit * mean(quantity, ADAM, name, dim):.0f}" for dim in dims) for name in names)
        return "; ".join(f"{name}: {every}" for name, every in zip(names, each, strict=True))

    with_momentum = pick(rows, BEST, optimiser=MOMENTUM)
    momentum_dim = with_momentum[0].where["head_dim"]
    momentum = ", ".join(
        f"{100 * mean(SHARE, MOMENTUM, name, momentum_dim):.0f} % ({name})"
        for name in (row.where["scores"] for row in with_momentum)
    )
    differences = "; ".join(
        f"{100 * row.measured:+.0f} ± {200 * row.standard_error:.0f}".replace("-", "−")
        + f" than with {row.where['instead']}"
        for row in pick(rows, MORE, optimiser=ADAM, head_dim="all")
    )
    (alone,) = pick(rows, SHARE, scores=UNIFORM)
    runs = int(shares[0].where["runs"])
    low, _ = interval(runs, runs)
    pair = [{"scores": (SCALED, NONE), "learning rate": rate} for rate in rates]
    of_both = [values([row for row in shares if row.takes("", where)], "measured") for where in pair]
    barren = sum(one.mean() < 0.1 for one in of_both)
    everywhere = all(row.measured == 1.0 for row in pick(rows, SHARE_AT_BEST, optimiser=ADAM))
    best = "all have learned" if everywhere else f"so many percent have learned: {listed(SHARE_AT_BEST, 100)}"
    return (
        f"By {ADAM}, at equal learning rates, so many percentage points more runs learn with 1/√d_k: {differences}; "
        f"± is two standard errors of the seeds. These are means over the d_k and the {len(rates)} rates that were "
        f"chosen: other rates give others, and at {barren} of these hardly any run learns with 1/√d_k or with none. "
        f"At the best rate of each way, chosen on the other half of the seeds, {best} (where all {runs} have, the 95 % "
        f"interval is {100 * low:.0f} to 100 %). By gradient descent with momentum, at d_k = {momentum_dim}, so many "
        f"learned: {momentum}; with uniform weights, by {ADAM}, {100 * alone.measured:.0f} %. "
        f"In detail, by {ADAM} with {runs} seeds at each rate from {rates[0]:g} to {rates[-1]:g}, at d_k = "
        f"{', '.join(str(dim) for dim in dims)}: percent that learned ({100 * LEARNED:.0f} % of the answers right at "
        f"the end): {listed(SHARE, 100)}; that diverged (a loss above that of guessing): {listed(DIVERGED, 100)}; "
        f"median steps until learned, at the best rate: {listed(STEPS, 1)}."
    )


_STYLES = {
    SCALED: (BLUE, "o"),
    NONE: (ORANGE, "s"),
    FULL: (GREEN, "D"),
    NORMED: (PURPLE, "^"),
    CAPPED: (SKY, "v"),
    SMALL: (GREY, "P"),
}


def draw(finding: Finding) -> Figure:
    """Shares that learned, steps until then, and the curves of the best learning rates."""
    figure, panels = figures.new_figure(4, 2, width=18.0, height=8.8)
    shares = [row for row in pick(finding.rows, SHARE) if "learning rate" in row.where]
    groups = list(dict.fromkeys((str(row.where["optimiser"]), row.where["head_dim"]) for row in shares))
    adam, momentum = groups[:-1], groups[-1:]
    for panel, (optimiser, dim) in zip(panels[:4], (*adam[-3:], *momentum), strict=False):
        _shares(panel, pick(shares, optimiser=optimiser, head_dim=dim))
        entitle(panel, f"{optimiser}, d_k = {dim}", "learning rate", "share of runs that learned")
    for panel in panels[len(adam[-3:]) + len(momentum) : 4]:
        panel.set_visible(False)
    optimiser, dim = adam[-1] if adam else ("", 0)
    label, steps = "steps to learn, median", pick(finding.rows, STEPS, optimiser=optimiser)
    entitle(panels[4], "How long it takes at the best learning rate", "head dimension d_k", label)
    figures.powers_of_two(panels[4], sorted(set(values(steps, "head_dim"))) or [1.0])
    for name, (colour, marker) in _STYLES.items():
        mine = pick(steps, scores=name)
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 6, "mfc": "none", "linewidth": 1.4}
        panels[4].plot(values(mine, "head_dim"), values(mine, "measured"), **look)
    panels[4].set_ylim(bottom=0)
    for panel, name, title, label in zip(
        panels[5:],
        ("loss", "entropy", "query_key_gradient"),
        ("Loss", "Entropy of the weights", "Gradient of W_q and W_k"),
        ("loss, nats", "entropy / ln n", "norm of the gradient"),
        strict=True,
    ):
        _curves(panel, pick(finding.rows, CURVES[name], optimiser=optimiser, head_dim=dim))
        entitle(panel, title, f"step, at the best learning rate, d_k = {dim}", label)
    panels[7].set_yscale("log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
    return figure


def _shares(panel: Axes, rows: Sequence[Row]) -> None:
    """A curve a way to make scores, with 95 % intervals, set side by side."""
    panel.set_xscale("log")
    for index, (name, (colour, marker)) in enumerate(_STYLES.items()):
        if mine := pick(rows, scores=name):
            x = values(mine, "learning rate") * figures.spread(index, len(_STYLES), 0.06)
            counts = [(row.measured, int(row.where["runs"])) for row in mine]
            low, high = zip(*(interval(round(share * runs), runs) for share, runs in counts), strict=True)
            look: dict[str, Any] = {"marker": marker, "ms": 5, "mfc": "none", "label": name}
            panel.plot(x, values(mine, "measured"), color=colour, linewidth=1.4, **look)
            panel.vlines(x, low, high, color=colour, linewidth=0.9, alpha=0.7)
    rates = sorted(set(values(rows, "learning rate")))
    panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
    panel.minorticks_off()
    figures.share_axis(panel)


def _curves(panel: Axes, rows: Sequence[Row]) -> None:
    """The mean of the runs at each step, with a band of one standard error of the seeds."""
    panel.set_xscale("log")
    for name, (colour, marker) in _STYLES.items():
        mine = pick(rows, scores=name)
        x, y, error = (values(mine, of) for of in ("step", "measured", "standard_error"))
        panel.plot(x, y, color=colour, marker=marker, ms=5, mfc="none", linewidth=1.6)
        panel.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
    panel.axhline(0.0, color=BLACK, linewidth=0.6)


EXPERIMENT = Experiment(
    title="Training with the factor and without",
    question="Does a small transformer learn more often with 1/√d_k, and with what else does it?",
    theory="*The task*: a transformer of one layer (d_model 32, one head of dimension d_k, an MLP, pre-norm) learns "
    "to look up. A sequence pairs 16 of 32 keys with values, and is asked for each key's value. *What differs*: scores "
    "are made with 1/√d_k, without it, with 1/d_k, of normalised queries and keys (QK-norm), unscaled under a soft cap "
    "of 5, and unscaled from smaller weights. *What is compared*: the share of runs that learn, at equal learning "
    "rates and at each way's own best one. Adam divides each gradient by its own size, so that a scale on the scores "
    "and a learning rate of W_q and W_k can partly stand in for one another. The rate is constant, without warm-up and "
    "clipping. No theory here predicts which runs learn: the figures are measured, and count in no comparison.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Above: share of runs that learned, with 95 % intervals (Wilson); marks of one learning rate "
    "stand side by side. Below, each at its best learning rate: median steps until nine of ten answers are "
    "right; loss, entropy of the weights and gradient over the steps, with bands of one standard error over "
    "the seeds.",
    lesson="For this model, task and these rates the factor widens the range of rates that work; by Adam 1/d_k and "
    "normalised queries and keys widen it further, and at its own best rate a model learns without the factor too. "
    "1/d_k, whose softmax starts flatter, costs no runs by Adam on average, nor at its best rate, though up to half as "
    "many steps again; by momentum, which does not divide a gradient by its size, it wants larger rates: at equal ones "
    "fewer runs learn on average, at its best as many. Whether freezing is what hinders the others was not measured, "
    "nor any other model.",
    shown=(
        Shown("learned with 1/√d_k − without"),
        Shown("learned with 1/√d_k − without, at the best learning rates", {"head_dim": "all"}),
        Shown("best learning rate"),
        Shown("share of runs that learned at their best learning rate"),
        Shown("steps to learn, median"),
        Shown("mean square of the scores at the start"),
    ),
)
