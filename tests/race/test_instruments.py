"""An instrument is one class: given to a conductor, its readings stand in every result."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_workers import QUICK, SMALL
from toy_instruments import CpuTime, Failing

from attnlab.backend.contender import parse_all
from attnlab.problem.result import Outcome, Result
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import LATENCY, PEAK_MEMORY


def test_a_new_instrument_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures in the worker process, and its quantity, unit, columns and facts are stored with the result."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where the worker finds their module
    chosen = (LATENCY, Failing(), PEAK_MEMORY, CpuTime())
    with Conductor(parse_all(["numpy_blocked"]), limits=QUICK, instruments=chosen) as conductor:
        (result,) = conductor.race(SMALL)
    assert result.outcome is Outcome.MEASURED, result.reason
    quantities = [one.quantity for one in result.measurements]
    assert quantities == ["latency", "setup", "peak_memory", "cpu_time"], result.reason
    found = result.measurement("cpu_time")
    assert found is not None and found.unit == "s" and len(found.samples) == 3
    assert found.columns == {"call": (0.0, 1.0, 2.0)}
    assert found.facts == {"clock": "process_time"}
    assert result.reason == "its spin could not be measured: raised RuntimeError: no such counter here"
    assert Result.from_json(result.to_json()) == result
    assert conductor.account["instruments"] > 0
