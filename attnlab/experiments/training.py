"""Is training stable because of 1/√d_k? Small transformers learn to recall, with the factor, without it, and otherwise.

At each d_k and each learning rate some runs learn the task and some do not. What is compared is their share over the
same learning rates, and at the learning rate that is best for each way to make the scores: a change that merely wants
another learning rate shows in the first alone. The best is chosen on one half of the seeds and judged on the other,
both ways round, so that luck in the choice is not counted. Runs of one seed start alike and see the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.estimates import mean_over_clusters
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.survey import Survey, generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnlab.experiments.learning import Runs
    from attnlab.experiments.recall import Attention

SCALED, NONE, FULL, NORMED, CAPPED, SMALL = (
    "1/√d_k", "none", "1/d_k", "QK-norm", "soft cap", "none, small weights",
)  # fmt: skip
UNIFORM = "uniform weights"
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
    def learned_at_best(self) -> NDArray[np.float64]:
        """Whether each seed's run learned, (seeds,), at the rate that is best for the other half of the seeds."""
        even = np.arange(self.runs.loss.shape[2]) % 2 == 0
        found = np.empty(len(even))
        for half in (even, ~even):
            chosen = int(np.argmin(self.runs.final_loss[:, ~half].mean(axis=1)))
            found[half] = self.runs.learned[chosen, half]
        return found


def measure(survey: Survey, grid: Grid | None = None) -> None:
    """Runs that learned, by way to make scores, d_k, learning rate and optimiser; and what they showed step by step."""
    from attnlab.experiments.learning import ADAM, MOMENTUM

    grid = grid or Grid()
    seeds = [int(one) for one in generator(survey.seed, 1800).integers(2**31, size=grid.seeds)]
    survey.facts |= {"runs of each": grid.seeds, "steps": grid.steps, "computed by": "PyTorch, float32"}
    for head_dim in grid.head_dims:
        survey.rows += _starts(head_dim, survey.seed)
    found: list[Group] = []
    for optimiser, dims, rates in (
        (ADAM, grid.head_dims, grid.rates),
        (MOMENTUM, (grid.momentum_dim,), grid.momentum_rates),
    ):
        for head_dim in dims:
            for name, attention in ways(head_dim).items():
                if optimiser == ADAM or name in (SCALED, NONE, FULL):
                    found.append(_trained(optimiser, name, attention, rates, seeds, grid.steps))
                    survey.rows += _rows_of(found[-1])
    survey.rows += _without_attention(grid, seeds)
    for optimiser in (ADAM, MOMENTUM):
        survey.rows += _compared([one for one in found if one.optimiser == optimiser])


def _trained(
    optimiser: str, name: str, attention: Attention, rates: Sequence[float], seeds: Sequence[int], steps: int
) -> Group:
    from attnlab.experiments.learning import train

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
        for number in generator(seed, 1810, head_dim).integers(2**31, size=_STARTS):
            parameters = recall.start(attention, int(number))
            pairs, x = recall.tokens(
                parameters, recall.sequences(torch.Generator().manual_seed(int(number) + 1))
            )
            scores = recall.scores(parameters, attention, recall.normalised(x), pairs)
            squares.append(float(scores.double().square().mean()))
        mean, error = mean_over_clusters(np.array(squares)[:, None])
        expected = head_dim * attention.scale**2 * attention.shrunk**4
        yield Row.compare(START, {"head_dim": head_dim, "scores": name}, expected, mean, standard_error=error)


def _rows_of(group: Group) -> Iterator[Row]:
    """Shares by learning rate, and at the best one the share, the steps to learn and the curves."""
    runs, count = group.runs, group.runs.loss.shape[2]
    for place, rate in enumerate(group.rates):
        where = {**group.where, "learning rate": rate, "runs": count}
        yield _share(SHARE, where, runs.learned[place])
        yield _share(DIVERGED, where, runs.diverged[place])
    best = group.best
    where = {**group.where, "runs": count}
    yield Row.only_measured(BEST, where, group.rates[best])
    yield _share(SHARE_AT_BEST, where, group.learned_at_best)
    yield Row.only_measured(STEPS, where, float(np.median(runs.steps_to_learn[best])))
    from attnlab.experiments.recall import PAIRS

    for name, quantity in CURVES.items():
        unit = math.log(PAIRS) if name == "entropy" else 1.0
        values = getattr(runs, name)[:, best] / unit
        for first, last in _windows(len(values)):
            mean, error = mean_over_clusters(values[first:last].T)
            at = {**where, "step": last}
            yield Row.only_measured(quantity, at, mean, standard_error=error)


def _windows(steps: int) -> Iterator[tuple[int, int]]:
    """Stretches of steps, each about 1.8 times as far as the one before."""
    ends = sorted({min(steps, round(1.8**power)) for power in range(1 + math.ceil(math.log(steps, 1.8)))})
    return zip([0, *ends], ends, strict=False)


def _share(quantity: str, where: Where, outcomes: NDArray[np.generic]) -> Row:
    """The share of runs. Its standard error is half of Wilson's interval: not 0 where all came out alike."""
    happened, count = int(np.sum(outcomes)), len(outcomes)
    low, high = interval(happened, count, _ONE_ERROR)
    return Row.only_measured(quantity, where, happened / count, standard_error=(high - low) / 2)


#: probability of one standard error to either side
_ONE_ERROR = math.erf(math.sqrt(0.5))


def interval(happened: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share (1927): `happened` of `count`."""
    from scipy.stats import binomtest

    found = binomtest(happened, count).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)


def _without_attention(grid: Grid, seeds: Sequence[int]) -> Iterator[Row]:
    """The task with weights that cannot differ: where it could be learned so, it would tell nothing of attention."""
    from attnlab.experiments.learning import ADAM
    from attnlab.experiments.recall import Attention

    group = _trained(ADAM, UNIFORM, Attention(grid.head_dims[0], 0.0), grid.rates, seeds, grid.steps)
    where: Where = {**group.where, "runs": len(seeds) * len(grid.rates)}
    yield _share(SHARE, where, group.runs.learned.ravel())


def _compared(groups: Sequence[Group]) -> Iterator[Row]:
    """Runs that learned with 1/√d_k less those that learned otherwise, over all d_k and each alone.

    At equal learning rates, and at the best of each. Seeds are the clusters: all their runs share start and data.
    """
    by_name = {(one.head_dim, one.scores): one for one in groups}
    dims = list(dict.fromkeys(one.head_dim for one in groups))
    for other in dict.fromkeys(one.scores for one in groups if one.scores != SCALED):
        for chosen in dict.fromkeys((tuple(dims), *((one,) for one in dims))):
            pairs = [(by_name[dim, SCALED], by_name[dim, other]) for dim in chosen]
            where: Where = {
                "optimiser": groups[0].optimiser,
                "instead": other,
                "head_dim": "all" if len(chosen) > 1 else chosen[0],
            }
            everywhere = [_learned(with_it) - _learned(without) for with_it, without in pairs]
            at_best = [with_it.learned_at_best - without.learned_at_best for with_it, without in pairs]
            for quantity, found in ((MORE, everywhere), (MORE_AT_BEST, at_best)):
                mean, error = mean_over_clusters(np.mean(found, axis=0)[:, None])
                yield Row.only_measured(quantity, where, mean, standard_error=error)


def _learned(group: Group) -> NDArray[np.float64]:
    """Share of the learning rates at which each seed's run learned, (seeds,)."""
    return np.asarray(group.runs.learned.mean(axis=0))


def conclusion(rows: Sequence[Row]) -> str:
    """Shares at equal and at the best learning rates, steps to learn, and the other optimiser."""
    from attnlab.experiments.learning import ADAM, LEARNED, MOMENTUM

    shares = pick(rows, SHARE, optimiser=ADAM)
    rates = list(
        dict.fromkeys(float(row.where["learning rate"]) for row in shares if "learning rate" in row.where)
    )
    dims = list(dict.fromkeys(row.where["head_dim"] for row in pick(rows, BEST, optimiser=ADAM)))
    names = list(dict.fromkeys(str(row.where["scores"]) for row in pick(rows, BEST, optimiser=ADAM)))

    def over_rates(optimiser: str, name: str, dim: str | float, share: str = SHARE) -> float:
        found = [
            row.measured
            for row in pick(rows, share, optimiser=optimiser, scores=name, head_dim=dim)
            if "learning rate" in row.where
        ]
        return 100 * float(np.mean(found))

    def listed(figure: Callable[[str, str | float], str]) -> str:
        return "; ".join(f"{name}: {', '.join(figure(name, dim) for dim in dims)}" for name in names)

    def at_best(quantity: str, name: str, dim: str | float) -> float:
        (row,) = pick(rows, quantity, optimiser=ADAM, scores=name, head_dim=dim)
        return row.measured

    with_momentum = pick(rows, BEST, optimiser=MOMENTUM)
    momentum = ", ".join(
        f"{over_rates(MOMENTUM, str(row.where['scores']), row.where['head_dim']):.0f} % ({row.where['scores']})"
        for row in with_momentum
    )
    (alone,) = pick(rows, SHARE, scores=UNIFORM)
    runs = int(shares[0].where["runs"])
    low, _ = interval(runs, runs)
    everywhere = all(at_best(SHARE_AT_BEST, name, dim) == 1.0 for name in names for dim in dims)
    shares_at_best = listed(lambda name, dim: f"{100 * at_best(SHARE_AT_BEST, name, dim):.0f}")
    best = "all have learned" if everywhere else f"so many percent have learned: {shares_at_best}"
    return (
        f"{_differences(rows, ADAM)}A run has learned where {100 * LEARNED:.0f} % of its answers are right at the end, "
        f"has diverged where its loss ends above that of guessing, and has stalled otherwise. Of {runs * len(rates)} "
        f"runs each by {ADAM}, "
        f"{runs} at each of {len(rates)} learning rates from {rates[0]:g} to {rates[-1]:g}, at d_k = "
        f"{', '.join(str(dim) for dim in dims)}, so many percent have learned: "
        f"{listed(lambda name, dim: f'{over_rates(ADAM, name, dim):.0f}')}; and diverged: "
        f"{listed(lambda name, dim: f'{over_rates(ADAM, name, dim, DIVERGED):.0f}')}. "
        f"At the best learning rate of each, chosen on the other half of the {runs} seeds, {best} (where all {runs} "
        f"have, the 95 % interval is {100 * low:.0f} to 100 %). "
        f"Median steps there until so many are right: {listed(lambda name, dim: f'{at_best(STEPS, name, dim):.0f}')}. "
        f"By gradient descent with momentum at d_k = {with_momentum[0].where['head_dim']}: {momentum}. "
        f"With uniform weights {100 * alone.measured:.0f} % have."
    )


def _differences(rows: Sequence[Row], optimiser: str) -> str:
    """How many more runs learn with 1/√d_k than otherwise, over all d_k, with a space after it."""
    compared = pick(rows, MORE, optimiser=optimiser, head_dim="all")
    points = (
        f"{100 * row.measured:+.0f} ± {200 * row.standard_error:.0f}".replace("-", "−") for row in compared
    )
    found = "; ".join(
        f"{one} than with {row.where['instead']}" for one, row in zip(points, compared, strict=True)
    )
    told = "Over all d_k so many more percent of runs learn with 1/√d_k (± two standard errors, of the seeds)"
    return f"{told}: {found}. " if found else ""


def draw(finding: Finding) -> Figure:
    """Shares of runs that learned against the learning rate; loss, entropy and gradient over the steps."""
    from attnlab.experiments.training_figure import draw

    return draw(finding)
