"""How much of the scatter is between processes, how many rounds each is worth, and whether a contender has two speeds.

Three levels of chance stand above a sample: the process, the placement of its memory within it, and the round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnlab.problem.result import Measurement

#: two speeds are told apart where they differ by more than this, ...
_APART = 0.12
#: ... by more than so many times the widest scatter within either, and each is met so often
_SCATTERS = 3.0
_MET = 3
#: times that one follows the other, at least
_TURNS = 2


@dataclass(frozen=True)
class Components:
    """Standard deviations of a log ratio (or log time): `within` a process, from round to round, and `between` them.

    `between` is 0 where the process means scatter no more than their rounds explain.
    """

    within: float
    between: float


def components(pairs: Mapping[int, Sequence[float]]) -> Components | None:
    """The two levels of scatter in `pairs`, by process; None for fewer than two processes of at least two rounds.

    T1² = S1², the mean variance within; T2² = S2² - S1² / r, with S2² the variance of the process means and r the
    rounds a process (Kalibera and Jones 2013, section 6; r is their harmonic mean where they differ).
    """
    usable = [one for one in pairs.values() if len(one) > 1]
    if len(usable) < 2:
        return None
    within = statistics.fmean(map(statistics.variance, usable))
    between = statistics.variance(map(statistics.fmean, usable))
    rounds = statistics.harmonic_mean(map(len, usable))
    return Components(math.sqrt(within), math.sqrt(max(0.0, between - within / rounds)))


def rounds_per_process(found: Components, process_cost: float, round_cost: float) -> float:
    """The rounds a process that reach a width of the interval in the least time: sqrt(c2 / c1 · T1² / T2²).

    process_cost, round_cost : seconds to get a process ready (c2), and of a round in it (c1). Infinite where the
    processes do not differ (Kalibera and Jones 2013, equation 3).
    """
    if found.between == 0:
        return math.inf
    return math.sqrt(process_cost / round_cost) * found.within / found.between


@dataclass(frozen=True)
class Speed:
    """One of a contender's speeds: median seconds a call, and in how many placements of its memory it was met."""

    seconds: float
    placements: int


def speeds(latency: Measurement) -> tuple[Speed, ...]:
    """The speeds that a contender has by where its memory lies, fastest first: one, or two that stand clearly apart.

    The medians of its placements are cut at their widest gap. Two groups count as two speeds where they are 12 % apart,
    three times as far as either scatters, and each was met three times: otherwise they are one. They must come by
    turns: where all fast placements come before all slow ones, or after, the machine may have changed its own speed
    once.
    """
    timed = [statistics.median(samples) for _, samples in sorted(placements(latency).items())]
    medians = sorted(timed)
    if not medians:
        return ()
    whole = (Speed(statistics.median(medians), len(medians)),)
    if len(medians) < 2 * _MET:
        return whole
    gaps = [math.log(later / earlier) for earlier, later in pairwise(medians)]
    cut = max(range(len(gaps)), key=lambda at: gaps[at]) + 1
    groups = medians[:cut], medians[cut:]
    if min(map(len, groups)) < _MET:
        return whole
    scatter = max(math.log(group[-1] / group[0]) / max(1, len(group) - 1) for group in groups)
    apart = math.log(statistics.median(groups[1]) / statistics.median(groups[0]))
    if apart < math.log1p(_APART) or gaps[cut - 1] < _SCATTERS * scatter:
        return whole
    if sum(before != after for before, after in pairwise(one >= groups[1][0] for one in timed)) < _TURNS:
        return whole
    return tuple(Speed(statistics.median(group), len(group)) for group in groups)


def placements(latency: Measurement) -> dict[tuple[int, int], list[float]]:
    """The undisturbed samples by (process, placement)."""
    left_out, found = latency.disturbed_rounds, dict[tuple[int, int], list[float]]()
    process = latency.processes
    numbers = latency.columns.get("placement", (0.0,) * len(latency.samples))
    for (index, sample), number in zip(latency.by_round().items(), numbers, strict=True):
        if index not in left_out:
            found.setdefault((process[index], int(number)), []).append(sample)
    return found
