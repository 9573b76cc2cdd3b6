"""Runs of a machine over time: machines apart, drift cancelled, changes found with what changed beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import COSTS, ENVIRONMENT, synthetic
from typed import status

from attnlab.report.history_page import draw
from attnlab.runs.history import found_runs, histories
from attnlab.runs.store import Run
from attnlab.workload.workload import Workload

#: backends of three libraries
LIBRARIES = ("numpy_blocked", "torch_eager", "torch_sdpa", "openvino")
COUNT, AT = 24, 14


def _cost(name: str, factor: float, workload: Workload) -> float:
    return factor * COSTS[name if name in COSTS else "numpy_vectorized"](workload)


@pytest.fixture
def past(tmp_path: Path) -> Callable[..., list[Run]]:
    """A run a day; from the day `AT` on torch is another version and torch_sdpa takes `step` times as long.

    The machine drifts by `drift` (standard deviation) from run to run.
    """

    def make(step: float = 1.15, drift: float = 0.1, count: int = COUNT, cpu: str = "A CPU") -> list[Run]:
        speeds = np.exp(np.random.default_rng(1).normal(0, drift, count))
        runs = []
        for day, speed in enumerate(speeds):
            later = day >= AT
            by = {"torch_sdpa": step if later else 1.0}
            costs = {name: partial(_cost, name, speed * by.get(name, 1.0)) for name in LIBRARIES}
            folder = tmp_path / cpu / f"day{day:02}"
            folder.mkdir(parents=True)
            small: dict[str, Any] = {"lengths": (64,), "heads": (1,), "rounds": 6, "memory": False}
            run = synthetic(folder, costs=costs, seed=day, contenders=LIBRARIES, noise=0.01, **small)
            versions = {"versions": {"torch": "2.14.0" if later else "2.13.0"}}
            run.environment = {**ENVIRONMENT, "cpu": cpu, "contenders": {"torch_sdpa": versions}}
            run.id, run.started = f"{cpu}{day}", f"2026-03-{day + 1:02}T12:00:00+00:00"
            run.save()
            runs.append(run)
        return runs

    return make


def test_a_change_is_found_though_the_machine_drifts(past: Callable[..., list[Run]]) -> None:
    """In whom it was and in no one else, with its size and what changed there; whatever order the runs come in."""
    (one,) = histories(reversed(past()))
    assert [run.started for run in one.runs] == sorted(run.started for run in one.runs)
    changed = {each.contender: each.changes for each in one.series if each.changes}
    ((change,),) = changed.values()
    assert list(changed) == ["torch_sdpa"] and abs(change.run - AT) <= 1
    assert change.ratio == pytest.approx(1.15, rel=0.05)
    assert change.software == ("torch 2.13.0 → 2.14.0",)
    assert [at for at, some in enumerate(one.news) if some] == [AT]


def test_in_seconds_the_drift_is_in_the_way(past: Callable[..., list[Run]]) -> None:
    runs = past(drift=0.3)
    (in_seconds,), (relative,) = histories(runs, in_seconds=True), histories(runs)
    assert not any(each.relative or each.changes for each in in_seconds.series)
    assert sum(bool(each.changes) for each in relative.series) == 1


def test_machines_are_not_mixed_and_no_run_counts_twice(
    past: Callable[..., list[Run]], tmp_path: Path
) -> None:
    runs = [*past(count=2), *past(count=3, cpu="Another CPU")]
    found = histories([*runs, *runs])
    assert sorted(len(one.runs) for one in found) == [2, 3]
    assert len(list(found_runs([tmp_path]))) == 5
    with pytest.raises(ValueError, match=r"run\.json"):
        list(found_runs([tmp_path / "nothing"]))


def test_a_variable_and_a_library_are_news_where_they_change(past: Callable[..., list[Run]]) -> None:
    """A variable also where it goes; a library that is not in a run is the one of before."""
    runs = past(count=4)
    runs[1].environment = {**runs[1].environment, "variables": {"OMP_NUM_THREADS": "1"}, "contenders": {}}
    (one,) = histories(runs)
    assert one.news[1:] == [("OMP_NUM_THREADS unset → 1",), ("OMP_NUM_THREADS 1 → unset",), ()]


def test_words_of_changes_do_not_meet_and_a_run_that_is_not_drawn_takes_no_room(
    past: Callable[..., list[Run]],
) -> None:
    """However near the changes are."""
    runs = past(count=9)
    for at, run in enumerate(runs):
        run.environment = {**run.environment, "variables": {"OMP_NUM_THREADS": str(at)}}
    runs[-1].results = [one for one in runs[-1].results if one.contender == "openvino"]
    figure = draw(histories(runs, ["torch_sdpa"])[0]).figure
    figure.canvas.draw()
    words = [one for one in figure.axes[0].texts if "OMP_NUM_THREADS" in one.get_text()]
    boxes = [one.get_window_extent() for one in words]
    assert len(words) >= 4
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert "8 of 9 runs" in figure.texts[0].get_text()
    assert all(figure.bbox.y1 > one.y1 for one in boxes)


def test_runs_that_began_in_one_second_are_drawn(past: Callable[..., list[Run]]) -> None:
    """With what changed between them."""
    runs = past(count=2)
    for at, run in enumerate(runs):
        run.started = runs[0].started
        run.environment = {**run.environment, "variables": {"OMP_NUM_THREADS": str(at)}}
    assert "OMP_NUM_THREADS 0 → 1" in [
        one.get_text() for one in draw(histories(runs)[0]).figure.axes[0].texts
    ]


def test_the_command_writes_figures_a_page_and_data(
    past: Callable[..., list[Run]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    past()
    out = tmp_path / "out"
    assert status("history", str(tmp_path / "A CPU"), "--out", str(out), "--backends", "torch_sdpa") == 0
    page = (out / "history.md").read_text(encoding="utf-8")
    assert "torch 2.13.0 → 2.14.0" in page and "numpy_blocked" not in page
    assert sorted(one.suffix for one in (out / "figures").iterdir()) == [".png", ".svg"]
    capsys.readouterr()
    assert status("history", str(tmp_path / "A CPU"), "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert [len(each["seconds"]) for each in told["series"]] == [COUNT] * len(LIBRARIES)
    assert status("history", str(tmp_path / "A CPU"), "--workload", "n77") == 2
