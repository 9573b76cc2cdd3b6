"""Races that are made up: rounds in several processes, each with a few placements of its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnlab.race.compare import Comparison
from attnlab.stats.verdicts import verdicts_against
from attnlab.workload.result import Accuracy, Measurement, Outcome, Result
from attnlab.workload.workload import Workload

#: rounds of a process, and of a placement within it
ROUNDS, PLACED_FOR = 6, 3
TINY = Workload(heads=1, queries=16, keys=16, head_dim=8)


def latency(processes: Sequence[Sequence[float]], disturbed: Sequence[int] = ()) -> Measurement:
    """Samples by process; the rounds are numbered from 0 on, those of `disturbed` did not have their cores."""
    samples = [float(sample) for process in processes for sample in process]
    places = [
        (number, index // PLACED_FOR)
        for number, process in enumerate(processes)
        for index in range(len(process))
    ]
    columns = {
        "round": tuple(map(float, range(len(samples)))),
        "process": tuple(float(number) for number, _ in places),
        "placement": tuple(float(placement) for _, placement in places),
        "calibration_s": (5e-4,) * len(samples),
        "disturbed": tuple(float(index in disturbed) for index in range(len(samples))),
    }
    return Measurement("latency", "s", tuple(samples), columns)


def in_sets(samples: Sequence[float], rounds: int = ROUNDS) -> Measurement:
    """The samples of one race, so many rounds to a process."""
    return latency([samples[at : at + rounds] for at in range(0, len(samples), rounds)])


def measured(
    name: str, seconds: float | Measurement, *further: Measurement, error: float = 1e-7, **more: Any
) -> Result:
    """A right contender with these times, or with this one in all rounds of five processes, on `TINY`."""
    times = seconds if isinstance(seconds, Measurement) else latency([[seconds] * ROUNDS] * 5)
    right = Accuracy(error, 1.0, error, 16, 16, passed=True)
    fields = {"workload": TINY, "accuracy": right, "measurements": (times, *further), **more}
    return Result(name, outcome=Outcome.MEASURED, **fields)


def compared(*results: Result) -> Comparison:
    """Their race, the first of them its baseline."""
    one = results[0]
    return Comparison(one.workload, one.contender, results, verdicts_against(results, one.contender), 5)
