"""A run's folder keeps what was measured, through interrupts, cut-off lines and second runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.limits import Limits
from attnlab.runs.execute import Progress, resolve, run
from attnlab.runs.plan import Plan
from attnlab.runs.store import RUN_FILE, Run, read_run

LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 2.0)})
QUICK = Limits(min_rounds=6, max_rounds=6, workload_seconds=2, turn_seconds=1e-4)


def plan(**fields: object) -> Plan:
    """Two small workloads, one contender, nothing beside the race."""
    chosen: dict[str, Any] = {
        "contenders": ("numpy_vectorized",),
        "self_test": False,
        "memory": False,
        "ceilings": False,
    }
    chosen |= {"ceilings": False, "experiments": ("none",), "limits": QUICK, **fields}
    return Plan.grid(lengths=(8, 16), heads=(1,), head_dim=4, **chosen)


def record(folder: Path) -> Run:
    """A run with one measured and one failed result."""
    one = Run(
        folder=folder,
        plan=plan(),
        environment={"cpu": "x"},
        contenders=("numpy_vectorized", "other"),
        baseline="numpy_vectorized",
        account={"timed": 1.5},
    )
    one.save()
    workload = one.plan.workloads[0]
    one.append([Result("numpy_vectorized", workload, Outcome.MEASURED, measurements=(LATENCY,))])
    one.append([Result("other", workload, Outcome.DECLINED, reason="no")])
    return one


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Plan, account and results, which can be looked up by workload; each was on disk when it was appended."""
    written = record(tmp_path)
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert read_run(tmp_path) == written
    small = Workload(heads=1, queries=8, keys=8, head_dim=4, value_dim=4)
    assert read_run(tmp_path).results[0].workload == small


def test_a_line_cut_off_while_it_was_written_is_left_out(tmp_path: Path) -> None:
    """At any place; the results before it stand."""
    written = record(tmp_path)
    file = tmp_path / "results.jsonl"
    whole = file.read_text(encoding="utf-8")
    first = whole.index("\n") + 1
    for cut in (first + 1, first + 40, len(whole) - 1):
        file.write_text(whole[:cut], encoding="utf-8")
        assert read_run(tmp_path).results == written.results[:1]


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    """No file, another format, no JSON, missing parts, a broken line within."""
    with pytest.raises(ValueError, match=r"holds no run: there is no run\.json in it"):
        read_run(tmp_path)
    record(tmp_path)
    file, good = tmp_path / "run.json", json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "is not of format 1; measure again with this version"),
        (json.dumps({**good, "format": 2}), "is not of format 1"),
        (json.dumps({"format": 1}), "is no run of this version"),
        (json.dumps({**good, "complete": 3}), "is no run of this version.*complete must be bool, got 3"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_run(tmp_path)
    file.write_text(json.dumps(good), encoding="utf-8")
    (tmp_path / "results.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 1: not a result"):
        read_run(tmp_path)


def test_a_run_of_the_first_version_is_still_read() -> None:
    """Its workloads have the former name of the input distribution, and no field that came later."""
    stored = read_run(Path(__file__).parents[2] / "reports" / "reference")
    assert stored.complete and len(stored.results) == len(stored.plan.workloads) * len(stored.contenders)
    assert {one.workload for one in stored.results} == set(stored.plan.workloads)
    assert all(one.distribution == "normal" for one in stored.plan.workloads)


def test_the_frame_has_one_row_a_measurement_and_one_for_what_has_none(tmp_path: Path) -> None:
    """With the median as its value, and the reason where there is none."""
    frame = record(tmp_path).frame()
    assert frame["contender"].tolist() == ["numpy_vectorized", "other"]
    assert frame["value"].tolist()[0] == 2.0
    assert frame["reason"].tolist()[1] == "no"
    assert read_run(tmp_path).samples()["value"].tolist() == [2.0, 1.0, 4.0]


def test_an_output_folder_that_cannot_be_used_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """A file, another run, somebody's files, a folder within a file: none is touched."""
    file, full, other = (tmp_path / name for name in ("file", "full", "other"))
    file.write_text("mine", encoding="utf-8")
    full.mkdir()
    (full / "notes").touch()
    other.mkdir()
    record(other)
    for folder, message in (
        (file, "is a file; give another with --out"),
        (full, "already holds something else than results of attnlab; give a new one with --out"),
        (other, "already holds results; give a new one with --out"),
        (file / "within", "cannot be made"),
    ):
        with pytest.raises(ValueError, match=message):
            run(plan(), folder)
    assert file.read_text(encoding="utf-8") == "mine"
    assert [one.name for one in full.iterdir()] == ["notes"]


def test_an_unknown_backend_leaves_no_folder(tmp_path: Path) -> None:
    """The plan is resolved first."""
    with pytest.raises(ValueError, match="no backend is called 'nunpy'"):
        run(plan(contenders=("nunpy",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_baseline_is_entered_twice_as_a_self_test() -> None:
    """Next to itself, unless it is there twice already or that is not wanted."""
    two = ("numpy_blocked", "torch_eager")
    assert resolve(plan(contenders=two, self_test=True))[0].contenders == (*two, "torch_eager")
    assert resolve(plan(contenders=two * 2, self_test=True))[0].contenders == two * 2
    spelt, contenders = resolve(plan(contenders=two, self_test=True, baseline="numpy_blocked"))
    assert [one.name for one in contenders] == ["numpy_blocked", "numpy_blocked#2", "torch_eager"]
    assert spelt.baseline == "numpy_blocked"


class Interrupts(Progress):
    """Ctrl-C, when the second workload is about to start."""

    def stage(self, text: str, *, done: int, total: int) -> None:
        """Interrupt."""
        if done == 1:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first workload's results; and the next run into the default folder moves this one aside."""
    monkeypatch.chdir(tmp_path)
    cut_short = run(plan(), progress=Interrupts())
    latest = Path("reports/latest")
    assert not cut_short.complete
    assert [result.outcome for result in cut_short.results] == ["measured"]
    back = read_run(latest)
    assert (back.complete, back.results, back.account) == (False, cut_short.results, cut_short.account)
    assert sum(back.account.values()) > 0

    whole = run(plan())
    assert whole.complete and len(whole.results) == 2
    assert [result.workload for result in whole.results] == list(whole.plan.workloads)
    folders = sorted(Path("reports").iterdir())
    assert len(folders) == 2 and all((folder / RUN_FILE).is_file() for folder in folders)
    assert len(read_run(next(one for one in folders if one.name != "latest")).results) == 1


def test_somebody_elses_latest_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run of ours is."""
    monkeypatch.chdir(tmp_path)
    Path("reports/latest").mkdir(parents=True)
    Path("reports/latest/thesis.md").touch()
    with pytest.raises(ValueError, match="something else than results of attnlab"):
        run(plan())
    assert Path("reports/latest/thesis.md").exists()
