"""A run's folder keeps what was measured, through interrupts, cut-off lines, full disks and second runs."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.environment import unchanged
from attnlab.errors import NotStored
from attnlab.race.limits import Limits
from attnlab.report import verdict_text
from attnlab.runs.execute import Progress, resume, run
from attnlab.runs.lock import held
from attnlab.runs.plan import Plan
from attnlab.runs.store import RUN_FILE, Run, examine, read_run, torn_text
from attnlab.workload.result import Measurement, Outcome, Result
from attnlab.workload.workload import Workload

ROOT = Path(__file__).parents[2]
LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 2.0)})
QUICK = Limits(processes=1, most_processes=1, min_rounds=4, max_rounds=4, turn_seconds=1e-4)


def plan(**fields: Any) -> Plan:
    """Two small workloads, one contender, nothing beside the race."""
    chosen: dict[str, Any] = {"contenders": ("numpy_vectorized",), "self_test": False, "memory": False}
    chosen |= {"ceilings": False, "experiments": ("none",), "limits": QUICK, **fields}
    return Plan.grid(lengths=(8, 16), heads=(1,), head_dim=4, **chosen)


def cells(results: Sequence[Result]) -> set[tuple[str, Workload]]:
    """Contenders and workloads that have a result."""
    return {(one.contender, one.workload) for one in results}


def record(folder: Path) -> Run:
    """A run with one measured and one failed result, on disk."""
    one = Run(folder, plan(), {"cpu": "x"}, ("numpy_vectorized", "other"), "numpy_vectorized")
    one.save()
    workload = one.plan.workloads[0]
    one.append([Result("numpy_vectorized", workload, Outcome.MEASURED, measurements=(LATENCY,))])
    one.append([Result("other", workload, Outcome.DECLINED, reason="no")])
    return one


class After(Progress):
    """Interrupts before the workload with this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def stage(self, text: str, *, done: int, total: int) -> None:
        if text != "starting the contenders" and done == self.number:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two workloads."""
    return run(plan(), tmp_path_factory.mktemp("whole") / "run")


# -- what is stored --------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was(tmp_path: Path, unbroken: Run) -> None:
    """Each result was on disk when it was appended; tables of them have a row a measurement, and one for none."""
    written = record(tmp_path)
    assert read_run(tmp_path) == written and read_run(unbroken.folder) == unbroken
    frame = written.frame()
    assert frame["contender"].tolist() == ["numpy_vectorized", "other"]
    assert frame["value"].tolist()[0] == 2.0 and frame["reason"].tolist()[1] == "no"
    assert written.samples()["value"].tolist() == [2.0, 1.0, 4.0]
    assert unbroken.complete and examine(unbroken.folder) == []
    assert [one.workload for one in unbroken.results] == list(unbroken.plan.workloads)
    assert sum(unbroken.account.values()) > 0


def test_every_run_in_the_repository_is_read() -> None:
    """Those of the first version too: their workloads have former names, and lack what came later."""
    folders = [file.parent for file in (ROOT / "reports").glob(f"*/{RUN_FILE}")]
    assert len(folders) >= 4
    for one in map(read_run, folders):
        assert one.complete and {result.workload for result in one.results} == set(one.plan.workloads)


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    record(tmp_path)
    good = (tmp_path / RUN_FILE).read_text()
    for name, text in (
        (RUN_FILE, "{"),
        (RUN_FILE, "[" * 100_000),
        (RUN_FILE, json.dumps({**json.loads(good), "format": 2})),
        (RUN_FILE, json.dumps({"format": 1})),
        ("results.jsonl", None),
    ):
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
        with pytest.raises(
            ValueError, match=f"{tmp_path / name}.*{'upgrade attnlab' if '2}' in str(text) else ''}"
        ):
            read_run(tmp_path)
        assert examine(tmp_path)[0].fault
        (tmp_path / RUN_FILE).write_text(good)


def test_what_is_damaged_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    """A digit, garbage and a figure that is none in the results; a finding, an account: no other line is lost."""
    run = synthetic(tmp_path, lengths=(64, 128), heads=(1, 4))
    file = tmp_path / "results.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    flipped = lines[3].replace(b"0.0", b"0.1", 1)
    file.write_bytes(b"".join([*lines[:3], flipped, b"\xff\x00 garbage\n", *lines[4:], b"\n"]))
    found = read_run(tmp_path)
    kept = [*run.results[:3], *run.results[4:]]
    assert list(map(repr, found.results)) == list(map(repr, kept)) and found.findings == run.findings
    assert [one.partition(":")[0] for one in found.torn["results.jsonl"]] == ["line 4", "line 5", "line 42"]
    (text,) = torn_text(found)
    assert "\n" not in text and "results.jsonl is damaged" in verdict_text(found)
    for name, old, new in (
        ("numerics.json", '"measured": ', '"measured": 1'),
        (RUN_FILE, '"timed": 8', '"timed": 9'),
    ):
        whole = (tmp_path / name).read_text()
        (tmp_path / name).write_text(whole.replace(old, new, 1))
        damaged = read_run(tmp_path)
        assert name in damaged.torn and any(one.fault for one in examine(tmp_path))
        assert not (damaged.findings if name == "numerics.json" else damaged.ceilings)
        (tmp_path / name).write_text(whole)


def test_a_run_of_before_checksums_is_read_and_its_figures_are_looked_at(tmp_path: Path) -> None:
    run = record(tmp_path)
    told = json.loads((tmp_path / RUN_FILE).read_text())
    del told["crc32"], told["checksums"]
    (tmp_path / RUN_FILE).write_text(json.dumps(told))
    good, bad = run.results[0].to_json(), run.results[0].to_json().replace("2.0", '"inf"')
    (tmp_path / "results.jsonl").write_text(f"{bad}\n{good}\n")
    found = read_run(tmp_path)
    assert found.results == run.results[:1] and "the latency of numpy_vectorized" in torn_text(found)[0]


# -- interrupted, and gone on with -----------------------------------------------------------------


def test_an_interrupted_run_goes_on_and_has_the_cells_of_an_unbroken_one(
    tmp_path: Path, unbroken: Run
) -> None:
    """What is measured already is not measured again; meanwhile the folder has one writer."""
    folder = tmp_path / "run"
    first = run(plan(), folder, progress=After(1))
    assert not first.complete and len(first.results) == 1 and read_run(folder).results == first.results
    with held(folder):
        for second in (lambda: resume(folder), lambda: run(plan(), folder)):
            with pytest.raises(ValueError, match="another run is writing to"):
                second()
        assert any("is writing to this folder now" in one.text for one in examine(folder))
    (folder / "run.lock").touch()  # as one that was killed leaves it
    found = resume(folder)
    assert (
        found.complete
        and cells(found.results) == cells(unbroken.results)
        and found.results[0] == first.results[0]
    )
    assert read_run(folder) == found
    assert not list(folder.glob("*.lock")) and not (folder / "results.torn").exists()
    for other in (folder, tmp_path):  # a complete run, and no run
        with pytest.raises(ValueError):
            resume(other)


def test_what_was_cut_off_is_set_aside_and_measured_again(tmp_path: Path) -> None:
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
    assert len(found.results) == len(cells(found.results)) == 4 and found.results[:2] == whole.results
    first, second = rest.splitlines()
    assert (tmp_path / "run" / "results.torn").read_bytes() == b"3: %b\n4: %b\n" % (first, second)
    assert not any(one.fault for one in examine(tmp_path / "run"))
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b"0.", b"1.", 1))  # in the first workload of a run that is complete now
    again = resume(tmp_path / "run")
    assert again.results[:2] == found.results[2:] and cells(again.results) == cells(found.results)
    assert read_run(tmp_path / "run") == again and file.read_bytes().startswith(kept.splitlines()[2])


def test_other_conditions_refuse_to_go_on(tmp_path: Path, unbroken: Run) -> None:
    """What differs is named with both values, and the results stand."""
    folder = Path(shutil.copytree(unbroken.folder, tmp_path / "run"))
    told = json.loads((folder / RUN_FILE).read_text())
    told |= {"complete": False, "environment": {**told["environment"], "cpu": "another"}}
    (folder / RUN_FILE).write_text(json.dumps(told))
    with pytest.raises(ValueError, match="was changed after it was written"):
        resume(folder)
    replace(unbroken, folder=folder, complete=False, environment=told["environment"]).save()
    with pytest.raises(ValueError, match="cpu was another and is "):
        resume(folder)
    assert len(read_run(folder).results) == 2
    before = {"contenders": {"a": {"versions": {"torch": "2.12"}}, "b": {"unknown": "why"}}}
    unchanged(before, {"contenders": {"b": {"versions": {"torch": "2.13"}}}})  # which could not tell then
    with pytest.raises(ValueError, match=r"the versions of a were torch 2\.12 and are torch 2\.13"):
        unchanged(before, {"contenders": {"a": {"versions": {"torch": "2.13"}}}})


def test_a_full_disk_is_said_and_what_is_there_stays(tmp_path: Path) -> None:
    """Half a workload is taken back."""
    written = record(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(NotStored, match=r"results\.jsonl cannot be written"):
            written.append([Result("other", written.plan.workloads[1], Outcome.DECLINED, reason="no")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "results.jsonl").read_bytes() == before and len(written.results) == 2


@pytest.mark.parametrize("stored", [1, 2])
def test_a_disk_that_fills_up_during_a_run_is_said_with_what_is_kept(tmp_path: Path, stored: int) -> None:
    """After one workload of two, or after both, before what follows them: how to go on is said, and works."""
    folder, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)

    class Filling(Progress):
        def finished(self, results: Any) -> None:
            if len(read_run(folder).results) == stored:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))

    try:
        with pytest.raises(NotStored) as fault:
            run(plan(), folder, progress=Filling())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{stored} of 2 workloads are measured and kept" in str(fault.value)
    assert f"attnlab run --resume {folder}" in str(fault.value)
    assert not any("0 of 2" in one.text or one.fault for one in examine(folder))
    assert resume(folder).complete and len(read_run(folder).results) == 2


def test_a_request_to_terminate_keeps_what_is_measured(tmp_path: Path) -> None:
    """As Ctrl-C does: a report, a line that says how to go on."""
    folder = tmp_path / "run"
    words = ["run", "--backends", "numpy_vectorized", "--lengths", ",".join(map(str, range(8, 40)))]
    words += ["--heads", "1,2,4", "--processes", "1", "--seconds", "0.1", "--experiments", "none"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "attnlab", *words, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("[2/") for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 130 and f"attnlab run --resume {folder}" in errors
    assert (folder / "report.md").exists() and 0 < len(read_run(folder).results) < 96


def test_the_doctor_names_what_is_wrong(tmp_path: Path) -> None:
    """What is doubled, missing, from elsewhere, impossible, cut off."""
    record(tmp_path)
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    stray = json.loads(lines[0])
    stray["workload"] |= {"heads": 3, "kv_heads": 3}
    stray["contender"] = "stranger"
    file.write_text("".join([*lines, lines[0], "{"]))
    run = read_run(tmp_path)
    run.append([Result.from_json(json.dumps(stray))])
    told = " ".join(one.text for one in examine(tmp_path))
    for words in ("1 of 2 workloads left", "2 results", "stranger is no contender", "is no workload"):
        assert words in told
    assert "line 4: " in told


# -- which folder ----------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """A file, another run, somebody's files, a folder within a file; an unknown backend leaves no folder."""
    file, full, other = (tmp_path / name for name in ("file", "full", "other"))
    file.touch()
    full.mkdir()
    (full / "notes").touch()
    other.mkdir()
    record(other)
    for folder in (file, full, other, file / "within"):
        with pytest.raises(ValueError, match=f"the output folder {folder}"):
            run(plan(), folder)
    assert [one.name for one in full.iterdir()] == ["notes"]
    with pytest.raises(ValueError, match="no backend is called 'nunpy'"):
        run(plan(contenders=("nunpy",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_run_before_in_the_default_folder_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each under a name of its own; what is not ours stays."""
    monkeypatch.chdir(tmp_path)
    latest = Path("reports/latest")
    for _ in range(3):
        run(plan(), progress=After(0))
    assert latest.is_dir() and len(list(Path("reports").glob(f"latest-*/{RUN_FILE}"))) == 2
    (latest / RUN_FILE).unlink()
    with pytest.raises(ValueError, match="something else than results of attnlab"):
        run(plan())
