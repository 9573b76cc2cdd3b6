"""Where a history of figures, one a run, moves to another level: ranks of steps and arcs, and a simulated threshold.

The requirement is a rate of false alarms: a history in which nothing changed shows no change point but in `ALPHA` of
all cases, whatever its figures are distributed like, and also where neighbouring runs resemble each other a little.

1. The figures are replaced by their ranks (Pettitt 1979, "A non-parametric approach to the change-point problem"). A
   few runs that were far off, as heavy tails have them, then weigh no more than any other run at the end of the order,
   and the distribution without a change no longer depends on that of the figures.
2. The mean rank of every arc of runs is held against that of all other runs, in its standard errors; an arc that ends
   where the history does is a single step (Olshen, Venkatraman, Lucito and Wigler 2004, "Circular binary segmentation":
   binary segmentation alone misses a level that goes up and comes back).
3. The greatest score of a step, and that of another arc, are held against the 1 − `ALPHA` / 2 quantile that each has in
   simulated histories of the same length which only wander: Gaussian, with a correlation of `CORRELATION` between
   neighbours. Independent runs exceed it less often, runs with a correlation above that more often
   (``benchmarks/history.md`` measures both).
4. Where a step is significant, it is set where the figures scatter least around the medians of both sides; otherwise
   both ends of the arc are taken. Each piece is looked at again (Vostrikova 1981). Without a change nothing comes after
   the first look, so that the pieces add no false alarms to it.

Libraries were looked at. ``ruptures`` (Truong, Oudre and Vayatis 2020) finds the best segmentation for a number of
changes or a penalty, and has no test that would keep a rate of false alarms. Apache Otava (Fleming and others 2023,
"Hunter") is E-divisive (Matteson and James 2014) with Student's t in place of permutations: a test of the split that
was chosen as the best of many, for independent figures. Permuting runs, as E-divisive does, takes them for
exchangeable, which neighbours that resemble each other are not.

A rank test asks for enough runs: below `FEWEST` nothing is significant, however large it is, and in a
long history a new level is told from its seventh run on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

#: chance that a history without a change shows one
ALPHA = 0.005
#: a level lasts so many runs at least
LEAST = 4
#: runs of a history in which a step can be significant: fewer have no order that is rare enough
FEWEST = 17
#: between neighbouring runs of the histories that the threshold is simulated from
CORRELATION = 0.3
#: simulated histories: the quantile of 1 - ALPHA / 2 rests on the highest 20
_DRAWS = 8000
#: quantile of the scores of one kind that is called high; and a score over its limit that is no rounding
_HIGH, _ROUNDING = 0.97, 1 + 1e-4


def change_points(figures: Sequence[float]) -> list[int]:
    """The places at which a new level begins, ascending: ``figures[place]`` is the first of it. Empty where none does.

    figures : one a run, in the order of time, such as log seconds. The same answer at every call. For n figures the
    first call takes n² operations in each of thousands of simulated histories: 0.3 s for 50, 4 s for 200.
    """
    found: list[int] = []
    todo = [(0, len(figures))]
    while todo:
        low, high = todo.pop()
        cuts = _best([float(one) for one in figures[low:high]])
        found += [low + cut for cut in cuts]
        if cuts:
            ends = [0, *cuts, high - low]
            todo += [(low + one, low + other) for one, other in pairwise(ends)]
    return sorted(found)


def _best(figures: list[float]) -> list[int]:
    """The most significant step, or else both ends of the most significant arc; nothing where none is significant."""
    from scipy.stats import rankdata

    if len(figures) < FEWEST or min(figures) == max(figures):
        return []
    scores, places = _greatest(rankdata(figures)[None, :])
    clear = sorted(zip(scores[0] / _limits(len(figures)), places, strict=True), reverse=True)
    significant = [place for score, place in clear if score > _ROUNDING]
    if any(start == 0 for start, _ in significant):
        cuts = range(LEAST, len(figures) - LEAST + 1)
        return [min(cuts, key=lambda cut: _scatter(figures[:cut]) + _scatter(figures[cut:]))]
    return [significant[0][0], sum(significant[0])] if significant else []


def _scatter(figures: list[float]) -> float:
    """The sum of absolute deviations from the median."""
    middle = statistics.median(figures)
    return math.fsum(abs(one - middle) for one in figures)


def _greatest(ranks: Any) -> tuple[Any, list[tuple[int, int]]]:
    """How many standard errors the mean rank of an arc is from that of the other runs: the greatest of every kind.

    ranks : (histories, runs). Kinds are steps and other arcs of each length: (histories, kinds), and of each kind where
    it is in the first history, (start, length); a step starts at 0. Neither an arc nor what is left on a side of it is
    shorter than `LEAST`.
    """
    count = ranks.shape[1]
    ranks = (ranks - ranks.mean(axis=1, keepdims=True)).astype(np.float32)
    deviations = ranks.std(axis=1)
    sums = np.concatenate([np.zeros((len(ranks), 1), np.float32), np.cumsum(ranks, axis=1)], axis=1)
    scores, places = [], []
    for length in range(LEAST, count - LEAST + 1):
        error = deviations * np.float32(np.sqrt(length * (count - length) / count))
        scores.append(np.abs(sums[:, length]) / error)
        places.append((0, length))
        starts = np.arange(LEAST, count - LEAST - length + 1)
        if starts.size:
            apart = np.abs(sums[:, starts + length] - sums[:, starts])
            scores.append(apart.max(axis=1) / error)
            places.append((int(starts[apart[0].argmax()]), length))
    return np.stack(scores, axis=1), places


@lru_cache(maxsize=256)
def _limits(count: int) -> Any:
    """By kind the score above which it is significant in a history of so many runs.

    A step's score is told in parts of one that is high for its length, since the ranks of a few runs at the end cannot
    be as far from the others' as those of a half. Steps and other arcs exceed their limit in `ALPHA` / 2 each of
    histories which only wander; other histories than those say what is high.
    """
    drawn = np.random.default_rng(count).standard_normal((2 * _DRAWS, count), dtype=np.float32)
    for at in range(1, count):
        drawn[:, at] = CORRELATION * drawn[:, at - 1] + (1 - CORRELATION**2) ** 0.5 * drawn[:, at]
    scores, places = _greatest(drawn.argsort(axis=1).argsort(axis=1))
    limits = np.ones(len(places))
    steps = np.array([start == 0 for start, _ in places])
    limits[steps] = np.quantile(scores[:_DRAWS, steps], _HIGH, axis=0)
    for kinds in (steps, ~steps):
        if kinds.any():
            greatest = (scores[_DRAWS:, kinds] / limits[kinds]).max(axis=1)
            limits[kinds] *= np.quantile(greatest, 1 - ALPHA / 2, method="higher")
    return limits
