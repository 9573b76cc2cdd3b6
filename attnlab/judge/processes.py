"""Figures that a process has by itself, such as a share of its time: their mean over processes, with Student's
interval.

A process's figure is the median of its samples. Where it compares two workloads of one contender, the same process gave
both (workers are kept from workload to workload); what the machine did between them is in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnlab.judge.pairing import ALPHA, deviation, half_width
from attnlab.problem.result import Measurement


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
    if not found:
        return None
    return estimate([statistics.median(shares) for shares in found.values()], comparisons)


def time_ratio(first: Measurement, second: Measurement, comparisons: int = 1) -> Estimate | None:
    """How many times as long `second` took as `first`, both latencies of one contender on two workloads.

    Over the undisturbed rounds of each process; None where no process has any of both.
    """
    medians = [_medians(one, math.log) for one in (first, second)]
    figures = [
        medians[1][process] - medians[0][process] for process in sorted(set(medians[0]) & set(medians[1]))
    ]
    if not figures:
        return None
    found = estimate(figures, comparisons)
    value, low, high = (math.exp(one) for one in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.processes)


def seconds(latency: Measurement) -> Estimate | None:
    """Seconds of a call, as the geometric mean of the medians of its processes, over their undisturbed rounds.

    None where no process has any.
    """
    figures = list(_medians(latency, math.log).values())
    if not figures:
        return None
    found = estimate(figures)
    value, low, high = (math.exp(one) for one in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.processes)


def _medians(latency: Measurement, of: Callable[[float], float]) -> dict[int, float]:
    left_out, processes = latency.disturbed_rounds, latency.processes
    kept: dict[int, list[float]] = {}
    for index, seconds in latency.by_round().items():
        if index not in left_out:
            kept.setdefault(processes[index], []).append(of(seconds))
    return {process: statistics.median(values) for process, values in kept.items()}
