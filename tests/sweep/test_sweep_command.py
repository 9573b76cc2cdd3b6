"""``attnlab sweep`` on this host, through submitit, and what it says to a slip."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from page_blocks import data_of
from slurm import wait_until
from sweeping import PLAN, cells, plan_file

from attnlab.__main__ import main
from attnlab.problem.result import Result
from attnlab.runs import dataset
from attnlab.runs import sweep_folder as folder
from attnlab.runs import sweep_jobs as cluster
from attnlab.runs.execute import resolve, run
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import Run
from attnlab.runs.sweep_folder import read_sweep
from attnlab.runs.sweep_following import summary
from attnlab.runs.sweep_merging import results
from attnlab.runs.sweep_progress import State, Status, status

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None,
    reason="submitit is not installed; pip install 'attnlab[sweep]'",
)


@pytest.fixture(autouse=True)
def own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of the host that nobody else waits for: two tests may run side by side."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    """Exit status, what was printed, and the lines of errors."""
    with pytest.raises(SystemExit) as end:
        main(words)
    told = capsys.readouterr()
    return int(end.value.code or 0), told.out, told.err.splitlines()


@needs_submitit
def test_a_sweep_here_ends_with_a_report_and_the_results_of_one_run(tmp_path: Path) -> None:
    """Shard after shard, because one measures at a time."""
    file, out = plan_file(tmp_path), tmp_path / "sweep"
    command = [sys.executable, "-P", "-m", "attnlab", "sweep", str(file), "--shards", "2", "--out", str(out)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "6 of 6 workloads; shards: 2 complete"
    ends_with_all_that_is_read(out, found.stdout)
    unbroken = run(Plan.grid(**read_plan(file)), tmp_path / "unbroken")
    assert cells(results(read_sweep(out))) == cells(unbroken.results)
    (report,) = (out / "machines").glob("*/report.md")
    text = report.read_text(encoding="utf-8")
    assert "on 6 workloads" in text and f"\nattnlab sweep {out / 'plan.toml'} --shards 2\n" in text
    assert {one.relative_to(out).as_posix() for one in read_sweep(out).runs()} == {
        "shards/0000/run-1",
        "shards/0001/run-1",
    }


def ends_with_all_that_is_read(out: Path, printed: str) -> None:
    """A report for the machine, a page with every race in it, and a dataset with every result, each said where."""
    (report,) = (out / "machines").glob("*/report.md")
    assert f"The report of machine {report.parent.name}: {report}" in printed
    page = (out / "explore.html").read_text(encoding="utf-8")
    assert f"The page to explore: {out / 'explore.html'}" in printed
    assert len(data_of(page)["workloads"]["label"]) == 6
    if importlib.util.find_spec("pyarrow") is None:
        assert "No dataset: pyarrow is not installed" in printed
        return
    assert f"The dataset: {out / 'dataset'} (6 workloads added)" in printed
    stored = Counter(
        line for run in dataset.runs(out / "dataset") for line in map(Result.to_json, run.results)
    )
    assert stored == Counter(map(Result.to_json, results(read_sweep(out))))


@needs_submitit
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_done_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Sent to the whole group, as a terminal does; then it is gone on with."""
    longer = PLAN.replace("max_rounds = 2", "max_rounds = 300").replace(
        "turn_seconds = 0.0001", "turn_seconds = 0.02"
    )
    file, out = plan_file(tmp_path, longer), tmp_path / "sweep"
    command = [sys.executable, "-P", "-m", "attnlab", "sweep", str(file), "--shards", "1", "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until((out / "shards" / "0000" / "run-1" / "results.jsonl").exists, "a workload is done")
        finally:
            os.killpg(process.pid, number)
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "Go on with: attnlab sweep --resume --out" in errors and "Traceback" not in errors
    (state,) = status(read_sweep(out)).states
    assert 1 <= state.done < state.size and state.state == "stopped", (printed, state)
    kept = set((out / "shards" / "0000" / "run-1" / "results.jsonl").read_bytes().splitlines())
    again = subprocess.run(
        [*command[:5], "--resume", "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    there = cells(results(read_sweep(out)))
    assert len(there) == there.total() == 12
    assert kept <= set((out / "shards" / "0000" / "run-1" / "results.jsonl").read_bytes().splitlines())


def test_a_plan_is_cut_and_a_shard_done_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What CI, Kubernetes and a shell do: cut, then each shard by its number."""
    out = tmp_path / "sweep"
    few = PLAN.replace("lengths = [8, 16, 32]", "lengths = [8]")
    exit_status, _, errors = said(
        capsys, "sweep", str(plan_file(tmp_path, few)), "--shards", "2", "--cut", "--out", str(out)
    )
    assert exit_status == 0 and errors == [f"2 workloads in 2 shards: {out}"]
    command = [sys.executable, "-P", "-m", "attnlab", "sweep", "--out", str(out), "--shard", "1"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "shard 1: complete"), found.stderr
    exit_status, told, _ = said(capsys, "sweep", "--status", "--json", "--out", str(out))
    states = json.loads(told)
    assert exit_status == 0 and (states["done"], states["size"]) == (1, 2) and states["seconds_left"] > 0
    assert [one["state"] for one in states["shards"]] == ["open", "complete"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a sweep needs a plan: attnlab sweep PLAN.toml"),
        (["nowhere.toml"], "the plan file nowhere.toml cannot be read: No such file"),
        (["{plan}", "--cluster", "pbs"], "--cluster must be one of slurm, local, got 'pbs'"),
        (["{plan}", "--partition", "gpu"], "--partition is for Slurm: give --cluster slurm too"),
        (["{plan}", "--shards", "0"], "--shards must be above 0, got 0"),
        (["{plan}", "--shards", "2", "--hours-per-shard", "1", "--from", "{out}"], "holds no run"),
        (["{plan}", "--job-hours", "0"], "--job-hours must be above 0, got 0"),
        (["{plan}", "--at-once", "0"], "--at-once must be above 0, got 0"),
        (["{plan}", "--machines", "3"], "--machines and --price-per-hour are for --estimate"),
        (["{plan}", "--estimate", "--machines", "0"], "--machines must be above 0, got 0"),
        (["{plan}", "--estimate", "--price-per-hour", "nan"], "--price-per-hour must be above 0, got nan"),
        (
            ["{plan}", "--estimate", "--sample", "4"],
            "needs 5 races or more, got a sample of 4 of a plan of 6",
        ),
        (["{plan}", "--sbatch", "qos"], "--sbatch takes NAME=VALUE"),
        (["{plan}", "--estimate", "--from", "{out}"], "holds no run"),
        (["{plan}", "--status"], "which holds its plan: give none"),
        (["--status"], "holds no sweep"),
        (["--resume"], "holds no sweep"),
        (["--shard", "0"], "holds no sweep"),
        (["{bad}"], "bad.toml: unknown key 'length'; did you mean lengths"),
        (["{none}"], "is not valid TOML"),
        (["{unknown}"], "no_such_backend"),
    ],
)
def test_a_slip_is_one_line_and_writes_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was expected, what came, what to do."""
    files = {
        "plan": PLAN,
        "bad": "length = [8]",
        "none": "<plan/>",
        "unknown": 'backends = ["no_such_backend"]',
    }
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    places = {name: str(tmp_path / f"{name}.toml") for name in files} | {"out": str(tmp_path / "out")}
    given = [one.format(**places) for one in words]
    exit_status, printed, errors = said(capsys, "sweep", *given, "--out", places["out"])
    assert (exit_status, printed, len(errors)) == (2, "", 1), errors
    assert message in errors[0]
    assert not (tmp_path / "out").exists()


@needs_submitit
def test_without_slurm_one_line_says_so_and_the_cut_sweep_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be gone on with where Slurm is."""
    monkeypatch.setattr(cluster.shutil, "which", lambda name: None)
    out = tmp_path / "sweep"
    words = ["sweep", str(plan_file(tmp_path)), "--cluster", "slurm", "--out", str(out)]
    exit_status, _, errors = said(capsys, *words)
    assert exit_status == 2
    assert errors[-1] == (
        "attnlab: no Slurm here: there is no sbatch; run this where sbatch works, or give --cluster local"
    )
    assert read_sweep(out).told.sizes == (6,)


@needs_submitit
def test_what_sbatch_refuses_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same cluster: without --cluster slurm the sweep would go on on the host of whoever reads it."""
    for name in ("sbatch", "srun", "squeue", "scancel"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            "#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n", encoding="utf-8"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    out = tmp_path / "sweep"
    words = ["sweep", str(plan_file(tmp_path)), "--cluster", "slurm", "--partition", "no", "--out", str(out)]
    exit_status, printed, (cut, line) = said(capsys, *words)
    assert (exit_status, printed, cut) == (2, "", f"6 workloads in 1 shard: {out}")
    assert line == (
        "attnlab: Slurm takes no such job: sbatch: error: no such partition; nothing is lost, "
        f"go on with: attnlab sweep --resume --cluster slurm --out {out}"
    )


@needs_submitit
def test_a_disk_that_is_full_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the sweep stays as it is."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "a file"))

    monkeypatch.setattr(cluster.Cluster, "_submit", full)
    out = tmp_path / "sweep"
    exit_status, printed, errors = said(capsys, "sweep", str(plan_file(tmp_path)), "--out", str(out))
    assert (exit_status, printed) == (1, "")
    assert errors[1:] == [
        f"attnlab: the sweep in {out} stops: No space left on device ({tmp_path / 'a file'}); what is done is kept, "
        "--resume goes on"
    ]
    assert read_sweep(out).told.sizes == (6,)


def test_to_go_on_is_said_with_the_options_that_were_given() -> None:
    """Those of their defaults left out."""
    asked = cluster.Asked(
        cluster="slurm", partition="main", constraint="epyc&bigmem", hours=2, further={"account": "lab"}
    )
    assert asked.resume(Path("a sweep")) == (
        "attnlab sweep --resume --cluster slurm --partition main --constraint 'epyc&bigmem' --job-hours 2 "
        "--sbatch account=lab --out 'a sweep'"
    )
    assert cluster.Asked().resume(Path("b")) == "attnlab sweep --resume --out b"


def test_a_sample_of_another_plan_is_not_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says would be of other workloads."""
    (tmp_path / "out-sample").mkdir()
    plan = resolve(Plan.grid(**read_plan(plan_file(tmp_path, PLAN.replace("[8, 16, 32]", "[9, 17, 33]")))))[0]
    Run(tmp_path / "out-sample", plan, {}, plan.contenders, str(plan.baseline)).save()
    words = ["sweep", str(plan_file(tmp_path)), "--estimate", "--out", str(tmp_path / "out")]
    exit_status, printed, (line,) = said(capsys, *words)
    assert (exit_status, printed) == (2, "")
    assert (
        "out-sample holds a sample of another plan: give another --out, or learn from it with --from" in line
    )


def test_a_sweep_whose_races_are_all_done_says_what_it_waits_for() -> None:
    """A run measures ceilings and writes its report after its last race: that is not no time."""
    running = State(number=0, size=6, done=6, state="running", seconds=60.0)
    assert summary(Status((running,))) == (
        "6 of 6 workloads; shards: 1 running; all is raced, the last runs are ending"
    )
    stopped = replace(running, state="stopped")
    assert summary(Status((stopped,))).endswith("1 stopped; all is raced, the last runs have yet to end")
    half = replace(running, done=3)
    assert summary(Status((half,))) == "3 of 6 workloads; shards: 1 running; about 60 s left"


def test_shards_that_ended_for_one_reason_are_one_line() -> None:
    """A fleet with a wrong version has thousands."""
    many = [State(number=one, size=4, done=1, state="refused", reason="why") for one in range(7)]
    other = State(number=9, size=4, done=2, state="killed", reason="3 jobs ended there")
    assert Status((*many, other)).reasons() == [
        "7 shards (0, 1, 2, 3, 4, ...) refused with 7 of 28 workloads: why",
        "shard 9 killed with 2 of 4 workloads: 3 jobs ended there",
    ]
    assert Status(tuple(many[:2])).reasons() == ["2 shards (0, 1) refused with 2 of 8 workloads: why"]


def test_another_version_is_refused_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To go on as well as to do a shard; how far it is may still be asked."""
    out = tmp_path / "sweep"
    said(capsys, "sweep", str(plan_file(tmp_path)), "--cut", "--out", str(out))
    here = read_sweep(out).told.attnlab
    monkeypatch.setattr(folder, "version", lambda name: "99.0")
    for words in (["--resume"], ["--shard", "0"]):
        exit_status, _, (line,) = said(capsys, "sweep", *words, "--out", str(out))
        assert exit_status == 2 and f"is of attnlab {here}, and this is attnlab 99.0" in line
    exit_status, told, _ = said(capsys, "sweep", "--status", "--out", str(out))
    assert exit_status == 0 and told.startswith("0 of 6 workloads; shards: 1 open")


def test_submitit_is_asked_for_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is missing; the plan is cut all the same."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exit_status, _, errors = said(capsys, "sweep", str(plan_file(tmp_path)), "--out", str(tmp_path / "sweep"))
    assert (
        exit_status == 2 and errors[-1] == "attnlab: submitit is not installed; pip install 'attnlab[sweep]'"
    )
