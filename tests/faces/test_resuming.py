"""A run that was cut off goes on where it stopped, and its folder has one writer."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_run_folders import plan, record

from attnlab.errors import NotStored
from attnlab.problem.result import Outcome, Result
from attnlab.race.environment import environment, unchanged
from attnlab.runs import execute, results_file
from attnlab.runs.doctor import examine
from attnlab.runs.execute import Progress, resume, run
from attnlab.runs.lock import held
from attnlab.runs.store import Run, read_run


class After(Progress):
    """Interrupts before the workload with this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def stage(self, text: str, *, done: int, total: int) -> None:
        if text != "starting the contenders" and done == self.number:
            raise KeyboardInterrupt


def cells(found: Run) -> set[tuple[str, str, str]]:
    """Who answered what, and how."""
    return {(one.workload.label, one.contender, str(one.outcome)) for one in found.results}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two workloads."""
    return run(plan(), tmp_path_factory.mktemp("whole") / "run")


def test_an_interrupted_run_goes_on_and_has_the_cells_of_an_unbroken_one(
    tmp_path: Path, unbroken: Run
) -> None:
    """What is measured already is not measured again."""
    first = run(plan(), tmp_path / "run", progress=After(1))
    assert not first.complete and len(first.results) == 1
    found = resume(tmp_path / "run")
    assert found.complete and cells(found) == cells(unbroken)
    assert found.results[0] == first.results[0]
    assert read_run(tmp_path / "run") == found
    assert not (tmp_path / "run" / "results.torn").exists()
    assert not list((tmp_path / "run").glob("*.lock"))


def test_what_was_cut_off_is_set_aside_and_measured_again(tmp_path: Path, unbroken: Run) -> None:
    """A line without its end, and the first of two contenders' lines."""
    two = plan(contenders=("numpy_vectorized", "numpy_blocked"))
    whole = run(two, tmp_path / "run", progress=After(1))
    file = tmp_path / "run" / "results.jsonl"
    kept = file.read_bytes()
    first = json.loads(kept.splitlines()[0])
    first["workload"] = two.workloads[1].to_dict()
    rest = json.dumps(first).encode() + b"\n" + kept.splitlines()[1][:50]
    file.write_bytes(kept + rest)
    assert read_run(tmp_path / "run").torn
    found = resume(tmp_path / "run")
    assert len(found.results) == len(cells(found)) == 4
    assert found.results[:2] == whole.results
    assert (tmp_path / "run" / "results.torn").read_bytes() == rest + b"\n"
    assert not any(one.fault for one in examine(tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "told"), [("results.jsonl", "line 1: longer than"), ("run.json", "more than the")]
)
def test_a_file_without_an_end_fills_no_memory(tmp_path: Path, unbroken: Run, name: str, told: str) -> None:
    """A line, and a file that is read whole, has a size beyond which it is no result of ours."""
    copy = Path(shutil.copytree(unbroken.folder, tmp_path / "run"))
    with (copy / name).open("wb") as file:
        file.truncate(2**43)  # a hole, which takes no room
    with pytest.raises(ValueError, match=told):
        read_run(copy)


def test_a_complete_run_and_no_run_are_not_gone_on_with(tmp_path: Path, unbroken: Run) -> None:
    """One line says why."""
    with pytest.raises(ValueError, match="is complete: there is nothing to go on with"):
        resume(unbroken.folder)
    with pytest.raises(ValueError, match="holds no run"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_conditions_refuse_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs is named with both values, and the results stand."""
    run(plan(), tmp_path / "run", progress=After(1))
    here = environment()
    monkeypatch.setattr(execute, "environment", lambda: {**here, "cpu": "another", "load_at_start": 99})
    with pytest.raises(
        ValueError, match=r"not those in which the run began: cpu was .* and is another\. Restore"
    ):
        resume(tmp_path / "run")
    assert len(read_run(tmp_path / "run").results) == 1


def test_another_version_of_a_library_is_another_condition() -> None:
    """Of a contender that could not tell then or cannot now, nothing is compared."""
    before = {"contenders": {"a": {"versions": {"torch": "2.12"}}, "b": {"unknown": "why"}}}
    unchanged(before, {"contenders": {"b": {"versions": {"torch": "2.13"}}}})
    with pytest.raises(ValueError, match=r"the versions of a were torch 2\.12 and are torch 2\.13"):
        unchanged(before, {"contenders": {"a": {"versions": {"torch": "2.13"}}}})


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """The second is refused, whichever way it comes; a lock that nobody holds is no hindrance."""
    run(plan(), tmp_path / "run", progress=After(1))
    with held(tmp_path / "run"):
        with pytest.raises(ValueError, match="another run is writing to"):
            resume(tmp_path / "run")
        assert any("is writing to this folder now" in one.text for one in examine(tmp_path / "run"))
        with pytest.raises(ValueError, match="another run is writing to"):
            run(plan(), tmp_path / "run")
    (tmp_path / "run" / "run.lock").touch()
    assert resume(tmp_path / "run").complete


def test_a_full_disk_is_said_and_what_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a workload is taken back."""
    written = record(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    real, calls = os.write, []

    def full(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data[:20])

    monkeypatch.setattr(results_file.os, "write", full)
    one = Result("other", written.plan.workloads[1], Outcome.DECLINED, reason="no")
    with pytest.raises(
        NotStored, match=r"results\.jsonl cannot be written: No space left on device; what it holds"
    ):
        written.append([one])
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert len(written.results) == 2


def test_a_request_to_terminate_keeps_what_is_measured(tmp_path: Path) -> None:
    """As Ctrl-C does: a report, a line that says how to go on, no process left."""
    folder = tmp_path / "run"
    words = ["run", "--backends", "numpy_vectorized", "--lengths", "8,16,32,64,128", "--heads", "1,2,4"]
    command = [sys.executable, "-P", "-m", "attnlab", *words, "--seconds", "1", "--experiments", "none"]
    with subprocess.Popen(
        [*command, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("[2/") for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 130
    assert f"Go on with: attnlab run --resume {folder}" in errors
    assert (folder / "report.md").exists()
    assert 0 < len(read_run(folder).results) < 15


def test_entries_of_a_later_version_are_kept(tmp_path: Path) -> None:
    """In the run's file, through a save; in a result they are passed over, but not in what was asked."""
    record(tmp_path)
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), "mood": {"a": 1}}), encoding="utf-8"
    )
    found = read_run(tmp_path)
    assert found.further == {"mood": {"a": 1}}
    found.save()
    assert json.loads(file.read_text(encoding="utf-8"))["mood"] == {"a": 1}
    line = json.loads((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert Result.from_json(json.dumps({**line, "mood": 1})) == found.results[0]
    with pytest.raises(ValueError, match="unknown workload field 'mood'"):
        Result.from_json(json.dumps({**line, "workload": {**line["workload"], "mood": 1}}))


def test_the_doctor_names_what_is_wrong(tmp_path: Path, unbroken: Run) -> None:
    """Nothing in a whole run; what is doubled, missing, from elsewhere, impossible, cut off."""
    assert examine(unbroken.folder) == []
    record(tmp_path)
    file = tmp_path / "results.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    stray = json.loads(lines[0])
    stray["workload"]["heads"], stray["contender"] = 3, "stranger"
    stray["workload"]["kv_heads"] = 3
    stray["measurements"][0]["samples"] = [-1.0, 1.0, 1.0]
    file.write_text("".join([*lines, lines[0], json.dumps(stray) + "\n", "{"]), encoding="utf-8")
    told = " ".join(one.text for one in examine(tmp_path))
    for words in (
        "interrupted with 1 of 2 workloads left",
        "numpy_vectorized has 2 results",
        "stranger is no contender",
        "is no workload of this run's plan",
        "a latency that is no number from 0 up",
        "the last line of the results was cut off",
    ):
        assert words in told


def test_the_schema_in_the_docs_is_current_and_holds_of_what_is_stored(unbroken: Run) -> None:
    """Every entry that is stored is described."""
    from attnlab.runs.schema import schema

    file = Path(__file__).parents[2] / "docs" / "store.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(json.dumps(schema()))
    parts = schema()["$defs"]
    line = json.loads((unbroken.folder / "results.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert line.keys() == parts["Result"]["properties"].keys()
    assert line["workload"].keys() == parts["Workload"]["properties"].keys()
    stored = json.loads((unbroken.folder / "run.json").read_text(encoding="utf-8"))
    assert stored.keys() == parts["run"]["properties"].keys()
