"""Two stored runs are compared: what is reported, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import COSTS
from typed import status

from attnlab.runs.diff import diff
from attnlab.runs.store import Run

NAMES = ("torch_eager", "torch_sdpa", "torch_sdpa_math", "numpy_blocked")
Made = Callable[..., Run]


@pytest.fixture
def made(made: Made) -> Made:
    """A function that makes a run: torch_sdpa takes `slower` times as long, and every contender `drift` times."""

    def make(
        slower: float = 1.0, drift: float = 1.0, environment: dict[str, Any] | None = None, **more: Any
    ) -> Run:
        factors = {name: drift * (slower if name == "torch_sdpa" else 1.0) for name in NAMES}
        costs = {name: lambda w, of=name: factors[of] * COSTS[of](w) for name in NAMES}
        small = {"lengths": (64, 256), "heads": (2,), "contenders": NAMES, **more}
        run = made(costs=costs, **small)
        run.id, run.environment = run.folder.name, {**run.environment, **(environment or {})}
        run.save()
        return run

    return make


def test_a_contender_changed_though_the_day_was_slower(made: Made) -> None:
    """All times are 1.5 times as long, which does not count: only ratios to the baseline are compared."""
    found = diff(made(), made(slower=1.3, drift=1.5, seed=9))
    rows = [row for row in found.rows if row.contender != found.baseline]
    assert {row.contender for row in rows if row.changed} == {"torch_sdpa"}
    assert sum(bool(row.changed) for row in rows) == 2 and found.rows[0].changed
    assert all(row.now.seconds > 1.3 * row.was.seconds for row in rows)


def test_what_was_measured_and_is_wrong_now_stands_first(made: Made) -> None:
    found = diff(made(), made(wrong=("numpy_blocked",)))
    outcomes = {(row.contender, row.was.outcome, row.now.outcome) for row in found.rows[:2]}
    assert outcomes == {("numpy_blocked", "measured", "wrong")}
    assert found.rows[0].changed is None and found.rows[0].now.seconds is None


def test_other_versions_are_what_is_compared_and_other_conditions_are_refused(made: Made) -> None:
    newer: dict[str, Any] = {"contenders": {"torch_sdpa": {"versions": {"torch": "2.12.0"}}}}
    assert diff(made(), made(environment=newer)).software["torch"] == ("2.11.0", "2.12.0")
    elsewhere = {"cpu": "Another", "variables": {"OMP_NUM_THREADS": "1"}}
    one, other = made(), made(slower=2.0, environment=elsewhere)
    with pytest.raises(ValueError, match=r"cpu.*variables.*OMP_NUM_THREADS 1") as refused:
        diff(one, other)
    assert "\n" not in str(refused.value)
    shown = diff(one, other, anyway=True)
    assert set(shown.conditions) == {"cpu", "variables"}
    assert not any(row.changed for row in shown.rows) and any(row.was.against_baseline for row in shown.rows)


def test_what_cannot_be_compared_is_refused(made: Made) -> None:
    one, longer = made(), made(lengths=(512,))
    for other, why in (
        (one, "name two"),
        (replace(one, folder=Path("copy")), "name two"),
        (longer, "no workload in common"),
        (made(lengths=(64,)), r"workloads of its own: b1 h2 n256 .* and none"),
        (made(baseline="numpy_blocked"), "baseline"),
    ):
        with pytest.raises(ValueError, match=why):
            diff(one, other)


def test_the_command_prints_a_table_or_data(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = str(made().folder), str(made(slower=1.3, seed=4).folder)
    assert status("diff", one, other) == 0 and "changed" in capsys.readouterr().out
    assert status("diff", one, other, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rows"]) == 2 * len(NAMES)
    assert {row["contender"] for row in told["rows"] if row["changed"]} == {"torch_sdpa"}
