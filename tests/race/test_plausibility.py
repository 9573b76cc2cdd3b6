"""A speed far above what the machine can do is none, whoever asked for the race."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from attnlab.race import plausibility
from attnlab.workload.result import Ceiling, Measurement, Outcome, Result
from attnlab.workload.workload import Workload


def result(seconds: float) -> Result:
    latency = Measurement("latency", "s", (seconds,) * 3, {"round": (0.0, 1.0, 2.0)}, {"cache": "warm"})
    return Result("one", Workload(queries=1024, keys=1024), Outcome.MEASURED, measurements=(latency,))


@pytest.mark.parametrize(
    "seconds, flops, refused, asked",
    [(1.0, 1e9, False, False), (1e-9, 1e9, True, True), (1e-9, 1e30, False, True)],
    ids=["slow", "above the ceiling", "below a high ceiling"],
)
def test_what_is_far_above_the_ceiling_is_no_speed(
    monkeypatch: pytest.MonkeyPatch, seconds: float, flops: float, refused: bool, asked: bool
) -> None:
    """The ceiling is asked for only where a speed looks too high."""
    measure = Mock(return_value=Ceiling("cpu", "float32", flops, "numpy", 1e12, "numpy"))
    monkeypatch.setattr(plausibility, "measure_ceiling", measure)
    found = plausibility.plausible(result(seconds))
    assert (found.outcome is Outcome.WRONG, measure.called) == (refused, asked)
    assert not refused or "of the best matrix-multiply rate" in (found.reason or "")
