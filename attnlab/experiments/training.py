"""A small transformer trained with the factor 1/√d_k, without it, and with what may stand in for it.

At each d_k and each learning rate some runs learn the task and some do not. What is compared is their share over the
same learning rates, and at the learning rate that is best for each way to make the scores: a change that merely wants
another learning rate shows in the first alone. The best is chosen on one half of the seeds and judged on the other,
both ways round, so that luck in the choice is not counted. Runs of one seed start alike and see the same data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab import figures
from attnlab.experiments.finding import Array, Experiment, Finding, Row, Shown, Where, pick, values
from attnlab.experiments.survey import Survey, generator, mean_over_clusters
from attnlab.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, entitle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnlab.experiments.recall import Attention, Runs

SCALED, NONE, FULL, NORMED, CAPPED, SMALL = (
    "1/√d_k", "none", "1/d_k", "QK-norm", "soft cap", "none, small weights",
)  # fmt: skip
UNIFORM = "uniform weights"
#: as `attnlab.experiments.recall` calls them, which loads PyTorch
ADAM, MOMENTUM = "Adam", "momentum"
#: the smallest whole number with which one of 16 weights can pass .999: 1/(1 + 15 e^−2c)
_CAP = 5.0
SHARE, DIVERGED, BEST = "share of runs that learned", "share of runs that diverged", "best learning rate"
SHARE_AT_BEST, STEPS = "share of runs that learned at their best learning rate", "steps to learn, median"
MORE, MORE_AT_BEST = (
    "learned with 1/√d_k − without",
    "learned with 1/√d_k − without, at the best learning rates",
)
START = "mean square of the scores at the start"
#: what is followed step by step, at the best learning rate
CURVES: Mapping[str, str] = {
    "loss": "loss",
    "entropy": "entropy of the weights / ln n",
    "gradient": "norm of the gradient",
    "query_key_gradient": "norm of the gradient of W_q and W_k",
}
_STARTS = 96


@dataclass(frozen=True)
class Grid:
    """Which runs there are: `rates` for Adam, `momentum_rates` for gradient descent at `momentum_dim` alone."""

    head_dims: tuple[int, ...] = (16, 64, 256)
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    momentum_rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    momentum_dim: int = 64
    seeds: int = 8
    steps: int = 300


def ways(head_dim: int) -> Mapping[str, Attention]:
    """The ways to make scores that are compared, by name.

    QK-norm (Henry et al. 2020, 2010.04245; Dehghani et al. 2023, 2302.05442) normalises q and k, with a gain that is
    learned, and scales by 1/√d_k; the cap stands in the scale's place; small weights are those of T5 (Raffel et al.
    2020, 1910.10683), which start the scores as large as 1/√d_k would.
    """
    from attnlab.experiments.recall import Attention

    root = head_dim**-0.5
    return {
        SCALED: Attention(head_dim, root),
        NONE: Attention(head_dim, 1.0),
        FULL: Attention(head_dim, 1 / head_dim),
        NORMED: Attention(head_dim, root, normed=True),
        CAPPED: Attention(head_dim, 1.0, cap=_CAP),
        SMALL: Attention(head_dim, 1.0, shrunk=head_dim**-0.25),
    }


@dataclass(frozen=True)
class Group:
    """All runs of one optimiser, one d_k and one way to make scores."""

    optimiser: str
    head_dim: int
    scores: str
    rates: tuple[float, ...]
    runs: Runs

    @property
    def where(self) -> Where:
        """What tells it apart."""
        return {"optimiser": self.optimiser, "head_dim": self.head_dim, "scores": self.scores}

    @property
    def best(self) -> int:
        """Place of the learning rate with the smallest mean loss at the end."""
        return int(np.argmin(self.runs.final_loss.mean(axis=1)))

    @property
    def learned_at_best(self) -> Array:
        """Whether each seed's run learned, (seeds,), at the rate that is best for the other half of the seeds."""
        even = np.arange(self.runs.loss.shape[2]) % 2 == 0
        found = np.empty(len(even))
        for half in (even, ~even):
            chosen = int(np.argmin(self.runs.final_loss[:, ~half].mean(axis=1)))
            found[half] = self.runs.learned[chosen, half]
        return found


def measure(survey: Survey, grid: Grid | None = None) -> None:
    """Runs that learned, by way to make scores, d_k, learning rate and optimiser; and what they showed step by step."""
    from attnlab.experiments.recall import Attention

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
            _trained(optimiser, name, attention, rates, seeds, grid.steps)
            for head_dim in dims
            for name, attention in ways(head_dim).items()
            if optimiser == ADAM or name in (SCALED, NONE, FULL)
        ]
        survey.rows += [row for group in groups for row in _rows_of(group)]
        compared += _compared(groups)
    # with weights that cannot differ: where the task could be learned so, it would tell nothing of attention
    alone = _trained(ADAM, UNIFORM, Attention(grid.head_dims[0], 0.0), grid.rates, seeds, grid.steps)
    where = {**alone.where, "runs": len(seeds) * len(grid.rates)}
    survey.rows += [_share(SHARE, where, alone.runs.learned.ravel()), *compared]


def _trained(
    optimiser: str, name: str, attention: Attention, rates: Sequence[float], seeds: Sequence[int], steps: int
) -> Group:
    from attnlab.experiments.recall import train

    runs = train(attention, rates, seeds, steps, optimiser)
    return Group(optimiser, attention.head_dim, name, tuple(rates), runs)


def _starts(head_dim: int, seed: int) -> Iterator[Row]:
    """E s² before the first step against d_k scale², the weights being independent of tokens of fixed length."""
    import torch

    from attnlab.experiments import recall

    for name, attention in ways(head_dim).items():
        if attention.normed or not math.isinf(attention.cap):
            continue
        squares = []
        for number in map(int, generator(seed, 1810, head_dim).integers(2**31, size=_STARTS)):
            parameters = recall.start(attention, number)
            drawn = recall.sequences(torch.Generator().manual_seed(number + 1))
            pairs, x = recall.tokens(parameters, drawn)
            scores = recall.scores(parameters, attention, recall.normalised(x), pairs)
            squares.append([float(scores.double().square().mean())])
        mean, error = mean_over_clusters(np.array(squares))
        expected = head_dim * attention.scale**2 * attention.shrunk**4
        yield Row.compare(START, {"head_dim": head_dim, "scores": name}, expected, mean, standard_error=error)


def _rows_of(group: Group) -> Iterator[Row]:
    """Shares by learning rate, and at the best one the share, the steps to learn and the curves."""
    from attnlab.experiments.recall import PAIRS

    runs, (steps, _, count) = group.runs, group.runs.loss.shape
    for place, rate in enumerate(group.rates):
        where = {**group.where, "learning rate": rate, "runs": count}
        yield _share(SHARE, where, runs.learned[place])
        yield _share(DIVERGED, where, runs.diverged[place])
    best, where = group.best, {**group.where, "runs": count}
    yield Row.compare(BEST, where, None, group.rates[best])
    yield _share(SHARE_AT_BEST, where, group.learned_at_best)
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


def _compared(groups: Sequence[Group]) -> Iterator[Row]:
    """Runs that learned with 1/√d_k less those that learned otherwise, over all d_k and each alone.

    At equal learning rates, and at the best of each. Seeds are the clusters: all their runs share start and data.
    """
    # whether each seed's runs learned, (seeds,): the share of the learning rates, and at the best
    learned = {
        (one.head_dim, one.scores): (one.runs.learned.mean(axis=0), one.learned_at_best) for one in groups
    }
    dims = tuple(dict.fromkeys(one.head_dim for one in groups))
    for other in dict.fromkeys(one.scores for one in groups if one.scores != SCALED):
        for chosen in dict.fromkeys((dims, *((one,) for one in dims))):
            for at, quantity in enumerate((MORE, MORE_AT_BEST)):
                more = [learned[dim, SCALED][at] - learned[dim, other][at] for dim in chosen]
                mean, error = mean_over_clusters(np.mean(more, axis=0)[:, None])
                where: Where = {
                    "optimiser": groups[0].optimiser,
                    "instead": other,
                    "head_dim": "all" if len(chosen) > 1 else chosen[0],
                }
                yield Row.compare(quantity, where, None, mean, standard_error=error)


def conclusion(rows: Sequence[Row]) -> str:
    """Shares at equal and at the best learning rates, steps to learn, and the other optimiser."""
    from attnlab.experiments.recall import LEARNED

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
    ways_there = [row.where["scores"] for row in with_momentum]
    momentum = ", ".join(
        f"{100 * mean(SHARE, MOMENTUM, name, momentum_dim):.0f} % ({name})" for name in ways_there
    )
    (alone,) = pick(rows, SHARE, scores=UNIFORM)
    runs = int(shares[0].where["runs"])
    low, _ = interval(runs, runs)
    everywhere = all(row.measured == 1.0 for row in pick(rows, SHARE_AT_BEST, optimiser=ADAM))
    best = "all have learned" if everywhere else f"so many percent have learned: {listed(SHARE_AT_BEST, 100)}"
    return (
        f"{_differences(rows)}A run has learned where {100 * LEARNED:.0f} % of its answers are right at the end, "
        f"has diverged where its loss ends above that of guessing, and has stalled otherwise. Of {runs * len(rates)} "
        f"runs each by {ADAM}, "
        f"{runs} at each of {len(rates)} learning rates from {rates[0]:g} to {rates[-1]:g}, at d_k = "
        f"{', '.join(str(dim) for dim in dims)}, so many percent have learned: {listed(SHARE, 100)}; and diverged: "
        f"{listed(DIVERGED, 100)}. "
        f"At the best learning rate of each, chosen on the other half of the {runs} seeds, {best} (where all {runs} "
        f"have, the 95 % interval is {100 * low:.0f} to 100 %). "
        f"Median steps there until so many are right: {listed(STEPS, 1)}. "
        f"By gradient descent with momentum at d_k = {momentum_dim}: {momentum}. "
        f"With uniform weights {100 * alone.measured:.0f} % have."
    )


def _differences(rows: Sequence[Row]) -> str:
    """How many more runs learn by Adam with 1/√d_k than otherwise, over all d_k, with a space after it."""
    found = "; ".join(
        f"{100 * row.measured:+.0f} ± {200 * row.standard_error:.0f}".replace("-", "−")
        + f" than with {row.where['instead']}"
        for row in pick(rows, MORE, optimiser=ADAM, head_dim="all")
    )
    told = "Over all d_k so many more percent of runs learn with 1/√d_k (± two standard errors, of the seeds)"
    return f"{told}: {found}. " if found else ""


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
    for name, (colour, _) in _STYLES.items():
        mine = pick(rows, scores=name)
        x, y, error = (values(mine, of) for of in ("step", "measured", "standard_error"))
        panel.plot(x, y, color=colour, linewidth=1.6)
        panel.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
    panel.axhline(0.0, color=BLACK, linewidth=0.6)


EXPERIMENT = Experiment(
    title="Training with the factor and without",
    question="Does a small transformer learn because of 1/√d_k, and what does as well?",
    theory="A small transformer (d_model 32, one head of dimension d_k, an MLP, pre-norm) learns "
    "associative recall: a sequence pairs 16 of 32 keys with values, and is asked for each key's value. "
    "Weights start with variance 1/d_model, so that E(q·k)² = d_k. Adam divides each gradient by its own "
    "size: a factor that makes all of them smaller changes nothing, one before the softmax changes how far "
    "a step moves the scores. A scale on the scores and a learning rate for W_q and W_k can therefore stand "
    "in for one another, and each way to make scores is compared at equal learning rates and at its own "
    "best one. The learning rate is constant, without warm-up and clipping.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Above: share of runs that learned, with 95 % intervals (Wilson); marks of one learning rate "
    "stand side by side. Below, each at its best learning rate: median steps until nine of ten answers are "
    "right; loss, entropy of the weights and gradient over the steps, with bands of one standard error over "
    "the seeds.",
    lesson="For this model and task the factor widens the range of learning rates that work and shortens "
    "learning; by Adam 1/d_k and normalised queries and keys widen the range further, and at their own best "
    "learning rates runs learn without it too. Nothing of this has been shown for other models here.",
    shown=(
        Shown("learned with 1/√d_k − without"),
        Shown("learned with 1/√d_k − without, at the best learning rates", {"head_dim": "all"}),
        Shown("best learning rate"),
        Shown("share of runs that learned at their best learning rate"),
        Shown("steps to learn, median"),
        Shown("mean square of the scores at the start"),
    ),
)
