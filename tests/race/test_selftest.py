"""The self-test tells right from wrong where the answer is known, and what it starts it ends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from attnlab.backend.contender import parse_all
from attnlab.cli.app import app
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race import selftest as module
from attnlab.race.limits import Limits
from attnlab.race.selftest import (
    CONDITIONS,
    IDLE,
    LOADS,
    Report,
    Trial,
    background_load,
    seconds_alone,
    selftest,
)
from attnlab.report.selftest_page import page, verdict

TINY = Workload(heads=1, queries=8, keys=8, head_dim=4)


def measured(name: str, seconds: float, *, disturbed: float = 0.0, scatter: float = 0.0) -> Result:
    """Ten rounds in each of five processes, whose speeds scatter by so much, the last part of turns disturbed."""
    rounds = range(50)
    columns = {
        "round": tuple(map(float, rounds)),
        "process": tuple(float(index // 10) for index in rounds),
        "calibration_s": (0.001,) * 50,
        "disturbed": tuple(float(index % 10 >= 10 * (1 - disturbed)) for index in rounds),
    }
    samples = tuple(seconds * math.exp(scatter * math.sin(7 * (index // 10))) for index in rounds)
    latency = Measurement("latency", "s", samples, columns, {"cache": "warm"})
    memory = Measurement("peak_memory", "B", (float(len(name)),))
    return Result(name, TINY, Outcome.MEASURED, measurements=(latency, memory))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench whose races end as they are told: seconds of the first contender and of the second."""

    def make(first: Result, second: Result) -> module._Bench:
        one = module._Bench(TINY, Limits(), lambda text: None)
        monkeypatch.setattr(module._Bench, "race", lambda self, texts, condition, **rest: [first, second])
        return one

    return make


@pytest.mark.parametrize(
    ("ratio", "scatter", "passed"), [(1.0, 0.0, True), (1.1, 0.0, False), (0.9, 0.0, False), (1.0, 0.3, None)]
)
def test_a_contender_told_apart_from_itself_is_a_failure(
    bench: Any, ratio: float, scatter: float, passed: bool | None
) -> None:
    """In either direction; what cannot be told is none."""
    one = bench(measured("a", 1.0), measured("a#2", ratio, scatter=scatter))
    assert one.twins("a", IDLE).passed is passed


@pytest.mark.parametrize(
    ("found", "condition", "percent", "passed"),
    [
        pytest.param(1.03, IDLE, 3.0, True, id="found"),
        pytest.param(0.9, "cpu", 3.0, False, id="wrong sign, also beside background load"),
        pytest.param(1.0, IDLE, 2.0, None, id="too small to be found for certain"),
        pytest.param(1.0, IDLE, 10.0, False, id="missed"),
        pytest.param(1.0, "cpu", 10.0, None, id="missed beside background load"),
    ],
)
def test_a_slow_down_must_be_found_where_it_can_and_never_have_the_wrong_sign(
    bench: Any, found: float, condition: str, percent: float, passed: bool | None
) -> None:
    """Five per cent and more, on an idle machine."""
    one = bench(measured("a", 1.0), measured(f"a[slowed={percent:g}]", found))
    trial = one.slowed("a", percent, condition)
    assert trial.passed is passed
    assert trial.truth == pytest.approx(1 + percent / 100)


def trial(percent: float, said: str, condition: str = IDLE) -> Trial:
    """A slow-down of so much, and what was said of it."""
    ratio = 1 + percent / 100
    return Trial(
        "slowed", condition, "a", ratio, ratio, ratio - 0.01, ratio + 0.01, said, said == "slower" or None
    )


def report(*trials: Trial, others: str | None = None) -> Report:
    """A report of these trials."""
    return Report(trials, 1.0, "2026-03-01T12:00:00+00:00", {"cpu": "A Made-Up CPU"}, others)


def test_the_page_says_what_failed_and_who_disturbed() -> None:
    """With the figure that is right beside the one that was found."""
    wrong = Trial("A/A", "cpu", "torch_eager", 1.0, 1.31, 1.2, 1.4, "slower", False)
    found = report(trial(3.0, "slower"), wrong, others="1.3 cores, most of it python")
    assert not found.passed
    text = page(found)
    assert "FAILED: 1 of 2 answers were wrong" in text
    assert "ratio 1.310 where 1.00 is right" in text
    assert "1.3 cores, most of it python" in text
    assert "differences from 3 % on were found" in text
    assert "Passed" in verdict(report(trial(3.0, "slower")))[0]


def test_an_unknown_condition_is_refused_before_anything_is_measured() -> None:
    """With those that are known."""
    with pytest.raises(ValueError, match=f"conditions are {', '.join(CONDITIONS)}, got 'windy'"):
        selftest(conditions=["windy"])


@pytest.mark.parametrize("kind", LOADS)
def test_background_load_ends_with_its_block(kind: str) -> None:
    """Whatever happens in it."""
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="enough"), background_load(kind, 60.0):
        (mine,) = set(psutil.Process().children()) - before
        raise RuntimeError("enough")
    assert not mine.is_running()


def test_alone_is_measured_in_a_process_of_its_own() -> None:
    """Seconds a call; what goes wrong there is told with its last line."""
    (contender,) = parse_all(["numpy_vectorized"])
    assert 0 < seconds_alone(contender, TINY, seconds=0.01) < 1
    with pytest.raises(RuntimeError, match=r"numpy_vectorized alone gave no figure: .*bfloat16"):
        seconds_alone(contender, TINY.with_(dtype="bfloat16"), seconds=0.01)


def test_the_command_writes_its_page_and_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, as short as it can be."""
    monkeypatch.setattr(module, "SLOWED", (10.0,))
    monkeypatch.setattr(module, "TWINS", 1)
    monkeypatch.setattr(module, "_REPEATS", 1)
    monkeypatch.setattr(
        module, "Limits", lambda **given: Limits(**given | {"processes": 2, "most_processes": 2})
    )
    where = tmp_path / "deep" / "er"
    words = ["selftest", "--backends", "numpy_vectorized", "--conditions", "idle", "--seconds", "0.01"]
    done = CliRunner().invoke(app, [*words, "--out", str(where), "--json"], standalone_mode=False)
    assert done.exception is None, done.output
    told = json.loads(done.output)
    assert {one["question"] for one in told["trials"]} == {"fidelity", "A/A", "slowed"}
    assert json.loads((where / "selftest.json").read_text())["trials"] == told["trials"]
    assert "# The instrument put to the test" in (where / "selftest.md").read_text()
