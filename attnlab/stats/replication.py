"""What processes differ by: whether a contender has two speeds, and means over them.

Three levels of chance stand above a sample: the process, the placement of its memory within it, and the round. A
figure that a process has by itself, such as a share of its time, is the median of its samples; its mean over processes
has Student's interval. Where it compares two workloads of one contender, the same process gave both (workers are kept
from workload to workload); what the machine did between them is in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnlab.stats.verdicts import ALPHA, deviation, half_width
from attnlab.workload.result import Measurement

#: two speeds are told apart where they differ by more than this, ...
_APART = 0.12
#: ... by more than so many times the widest scatter within either, and each is met so often
_SCATTERS = 3.0
_MET = 3
#: times that one follows the other, at least
_TURNS = 2


@dataclass(frozen=True)
class Speed:
    """One of a contender's speeds: median seconds a call, and in how many placements of its memory it was met."""

    seconds: float
    placements: int


def speeds(latency: Measurement) -> tuple[Speed, ...]:
    """The speeds that a contender has from placement to placement, fastest first: one, or two clearly apart.

    The medians of its placements are cut at their widest gap. Two groups count as two speeds where they are 12 % apart,
    three times as far as either scatters, and each was met three times: otherwise they are one. They must come by
    turns: where all fast placements come before all slow ones, or after, the machine may have changed its own speed
    once. What makes the difference is not told.
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
    process = latency.visits
    numbers = latency.columns.get("placement", (0.0,) * len(latency.samples))
    for (index, sample), number in zip(latency.by_round().items(), numbers, strict=True):
        if index not in left_out:
            found.setdefault((process[index], int(number)), []).append(sample)
    return found


# -- figures of processes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean over `processes` and its interval; of one process alone the interval has no ends (nan)."""

    value: float
    low: float
    high: float
    processes: int


def estimate(figures: Sequence[float], comparisons: int = 1) -> Estimate:
    """The mean of one figure a process; the chance of 5 % to miss is shared among `comparisons`.

    Raises ValueError for no figures.
    """
    if not figures:
        raise ValueError("an estimate needs at least one process, got none")
    mean = statistics.fmean(figures)
    if len(figures) < 2:
        return Estimate(mean, math.nan, math.nan, 1)
    half = half_width(deviation(figures, mean), len(figures), ALPHA / comparisons)
    return Estimate(mean, mean - half, mean + half, len(figures))


def share(
    measurement: Measurement, column: str, comparisons: int = 1, most_waited: float = math.inf
) -> Estimate | None:
    """The share of its samples that a column of them makes up, in each process.

    Samples that waited for a core for more than that part of their time do not count; None where none is left.
    """
    found: dict[int, list[float]] = {}
    columns, none = measurement.columns, (0.0,) * len(measurement.samples)
    numbers, waits = (columns.get(name, none) for name in ("process", "waited"))
    for process, waited, part, whole in zip(
        numbers, waits, columns[column], measurement.samples, strict=True
    ):
        if not waited > most_waited:
            found.setdefault(int(process), []).append(part / whole)
    return estimate([statistics.median(one) for one in found.values()], comparisons) if found else None


def seconds(latency: Measurement, over: Measurement | None = None, comparisons: int = 1) -> Estimate | None:
    """Seconds of a call, as the geometric mean of the medians of its processes, over their undisturbed rounds.

    over : the latency of the same contender on another workload; it is how many times as long, then.
    None where no process has any (of both).
    """
    mine, base = _medians(latency), None if over is None else _medians(over)
    figures = [
        one if base is None else one - base[at] for at, one in mine.items() if base is None or at in base
    ]
    if not figures:
        return None
    found = estimate(figures, comparisons)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.processes)


def _medians(latency: Measurement) -> dict[int, float]:
    """The median of ln(seconds) of every process."""
    kept: dict[int, list[float]] = {}
    for (process, _), samples in placements(latency).items():
        kept.setdefault(process, []).extend(map(math.log, samples))
    return {process: statistics.median(values) for process, values in kept.items()}
