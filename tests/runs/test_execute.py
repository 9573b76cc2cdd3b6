"""Execution of a plan: an interrupt keeps what is measured, and a resumed run measures what is missing."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from scripted import RIGHT
from small_runs import QUICK, plan

from attnlab.race.conductor import Conductor
from attnlab.runs.execute import Progress, resume, run
from attnlab.runs.store import RESULTS, RUN_FILE, Run, held, read_run


class After(Progress):
    """Interrupts before the workload with this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def stage(self, text: str, *, done: int, total: int) -> None:
        if text != "starting the contenders" and done == self.number:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    """Stored results are kept, a result with a damaged line is measured again, and then the plan is complete.

    The folder stays locked until everything is written.
    """
    folder, heard = tmp_path / "run", list[bool]()

    def report(found: Run, ended: bool) -> None:
        with pytest.raises(ValueError, match="another process is writing"), held(found.folder):
            pass
        assert not read_run(found.folder).complete, "a kill before all is written leaves it incomplete"
        heard.append(ended)

    first = run(plan(), folder, progress=After(1), on_lap=report)
    assert heard == [True] and not first.complete and len(first.results) == 1
    assert read_run(folder).results == first.results
    found = resume(folder, on_lap=report)
    assert found.complete and found.results[0] == first.results[0] and read_run(folder) == found
    assert {one.workload for one in found.results} == set(found.plan.workloads)
    kept, damaged = (folder / RESULTS).read_bytes().splitlines(keepends=True)
    (folder / RESULTS).write_bytes(kept + damaged[:-9])
    again = resume(folder)
    assert len(again.results) == 2 and again.results[0] == found.results[0]
    told = json.loads((folder / RUN_FILE).read_text())
    told |= {"complete": False, "environment": {**told["environment"], "cpu": "another"}}
    (folder / RUN_FILE).write_text(json.dumps(told))
    with pytest.raises(ValueError, match="cpu was another and is "):
        resume(folder)
    assert len(read_run(folder).results) == 2


def test_an_interrupt_before_memory_keeps_the_times(tmp_path: Path) -> None:
    """Memory has visits of its own after the first lap. A resumed run makes them, and times nothing again."""
    pytest.importorskip("memray")
    first = run(plan(memory=True), tmp_path / "run", progress=After(2))
    assert not first.complete and [one.peak_bytes for one in first.results] == [None, None]
    found = resume(tmp_path / "run")
    assert found.complete and all(one.peak_bytes for one in found.results)
    assert [one.latency for one in found.results] == [one.latency for one in first.results]


def test_a_run_does_not_go_on_with_another_text_of_a_backend(tmp_path: Path) -> None:
    """Otherwise its visits would be mixed with those of the earlier text."""
    file = tmp_path / "mine.py"
    file.write_text(f"{RIGHT}attend = right\n")
    run(plan(contenders=("mine",), folders=(str(tmp_path),)), tmp_path / "run", progress=After(1))
    file.write_text(f"{RIGHT}attend = right  # faster\n")
    with pytest.raises(ValueError, match=r"the file of mine was .* and is .*; start a new run"):
        resume(tmp_path / "run")
    assert len(read_run(tmp_path / "run").results) == 1


def test_a_machine_that_sleeps_in_every_visit_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such visits do not count, and the time for other visits runs out."""
    monkeypatch.setattr(Conductor, "visit", lambda *_, **how: [])
    found = run(plan(limits=replace(QUICK, workload_seconds=0.1)), tmp_path / "run")
    assert not found.complete and not found.results, "so that it can be resumed"


def test_an_unknown_backend_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no backend is called 'nunpy'"):
        run(plan(contenders=("nunpy",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_conductor_that_is_killed_leaves_its_finished_visits_and_no_process(tmp_path: Path) -> None:
    """It is killed while it measures, after a visit was stored. The run can be read, and is marked as not complete."""
    folder = tmp_path / "run"
    words = "run --backends numpy_vectorized,numpy_blocked --lengths 8,16 --heads 1 --experiments none --quiet --out"
    conductor = psutil.Popen([sys.executable, "-m", "attnlab", *words.split(), str(folder)], cwd=tmp_path)
    try:
        results = folder / RESULTS
        while not (results.exists() and results.read_bytes().count(b"\n") > 1):
            with suppress(psutil.TimeoutExpired):
                pytest.fail(f"it ended with {conductor.wait(0.05)} before a visit was on disk")
        family = conductor.children(recursive=True)
    finally:
        conductor.kill()
    assert family and not psutil.wait_procs(family, timeout=60)[1]
    conductor.wait()
    left = read_run(folder)
    assert left.results and not left.complete
    assert set(left.environment["contenders"]) == set(left.contenders)
