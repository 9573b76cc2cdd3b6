"""Latencies as a race stores them: rounds in several processes, each with a few placements of its arrays."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.problem.result import Measurement

#: rounds of a process, and of a placement within it
ROUNDS, PLACED_FOR = 6, 3


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
