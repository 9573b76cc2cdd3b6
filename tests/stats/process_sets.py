"""Synthetic races, with rounds in several visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnlab.race.compare import Comparison
from attnlab.stats.intervals import verdicts_against
from attnlab.workload.result import Accuracy, Measurement, Outcome, Result
from attnlab.workload.workload import Workload

#: rounds per visit
ROUNDS = 6
TINY = Workload(heads=1, queries=16, keys=16, head_dim=8)


def latency(visits: Sequence[Sequence[float]], disturbed: Sequence[int] = ()) -> Measurement:
    """A latency with samples by visit. Rounds are numbered from 0; those in `disturbed` are marked as disturbed."""
    samples = [float(sample) for visit in visits for sample in visit]
    numbers = [number for number, visit in enumerate(visits) for _ in visit]
    columns = {
        "round": tuple(map(float, range(len(samples)))),
        "visit": tuple(map(float, numbers)),
        "disturbed": tuple(float(index in disturbed) for index in range(len(samples))),
    }
    return Measurement("latency", "s", tuple(samples), columns)


def in_sets(samples: Sequence[float], rounds: int = ROUNDS) -> Measurement:
    """A latency with the samples of one race, `rounds` of them per visit."""
    return latency([samples[at : at + rounds] for at in range(0, len(samples), rounds)])


def measured(
    name: str, times: Sequence[float] | Measurement, *further: Measurement, error: float = 1e-7, **more: Any
) -> Result:
    """The result of a right contender with these times on `TINY`; a list has `ROUNDS` samples per visit."""
    times = times if isinstance(times, Measurement) else in_sets(times)
    right = Accuracy(error, 1.0, passed=True)
    fields = {"workload": TINY, "accuracy": right, "measurements": (times, *further), **more}
    return Result(name, outcome=Outcome.MEASURED, **fields)


def compared(*results: Result) -> Comparison:
    """The comparison of these results, with the first as baseline."""
    one = results[0]
    return Comparison(one.workload, one.contender, results, verdicts_against(results, one.contender), 5)
