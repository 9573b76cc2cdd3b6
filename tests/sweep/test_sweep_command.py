"""``attnlab sweep`` on this host, through submitit, and what it says to a slip."""

from __future__ import annotations

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
from slurm import wait_until
from sweeping import HERE, PLAN, Fake, cells_of, needs_submitit, plan_file
from typed import status as exit_of

from attnlab.runs import dataset, sweep_folder
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.runs.sweep_folder import new_sweep, read_sweep, status
from attnlab.runs.sweep_slurm import Asked, Jobs
from attnlab.workload.result import Result


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    """Exit status, what was printed, and the lines of errors."""
    ended = exit_of(*words)
    told = capsys.readouterr()
    return ended, told.out, told.err.splitlines()


def attnlab(*words: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, which hears Ctrl-C also where this process ignores it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "attnlab", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_sweep_that_is_interrupted_and_gone_on_with_ends_with_a_report(tmp_path: Path) -> None:
    """Interrupted as a terminal does it, by the whole group; what is done is kept, and no process is left."""
    longer = PLAN.replace("max_rounds = 2", "max_rounds = 300").replace("[8, 16, 32]", "[8]")
    file, out = plan_file(tmp_path, longer.replace("= 0.0001", "= 0.02")), tmp_path / "sweep"
    with attnlab("sweep", str(file), "--shards", "2", "--out", str(out)) as process:
        try:
            wait_until((out / "shards" / "0000" / "run-1" / "results.jsonl").exists, "a workload is done")
        finally:
            os.killpg(process.pid, signal.SIGINT)
        printed, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Go on with: attnlab sweep --resume --out" in errors and "Traceback" not in errors
    sweep = read_sweep(out)
    assert status(sweep).done < 2 and not status(sweep).over, printed
    kept = cells_of(sweep)
    with attnlab("sweep", "--resume", "--out", str(out)) as process:
        printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert printed.splitlines()[-1] == "2 of 2 workloads; shards: 2 complete"
    assert kept <= cells_of(sweep) and len(cells_of(sweep)) == cells_of(sweep).total() == 4
    (report,) = (out / "machines").glob("*/report.md")
    assert f"The report of machine {report.parent.name}: {report}" in printed
    assert f"\nattnlab sweep {out / 'plan.toml'} --shards 2\n" in report.read_text(encoding="utf-8")
    assert f"The page to explore: {out / 'explore.html'}" in printed and (out / "explore.html").is_file()
    if importlib.util.find_spec("pyarrow") is None:
        assert "No dataset: pyarrow is not installed" in errors
        return
    assert f"The dataset: {out / 'dataset'} (2 workloads added)" in printed
    stored = [Result.to_json(one) for run in dataset.runs(out / "dataset") for one in run.results]
    there = [Result.to_json(one) for run in sweep.runs() for one in read_run(run).results]
    assert Counter(stored) == Counter(there)


def test_a_plan_is_cut_and_its_shards_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for CI, Kubernetes and a shell: each shard is then done by its number."""
    out = tmp_path / "sweep"
    words = ["sweep", str(plan_file(tmp_path)), "--shards", "2", "--cut", "--out", str(out)]
    assert said(capsys, *words) == (0, "", [f"6 workloads in 2 shards: {out}"])
    shard = read_sweep(out).shard(1)
    Fake(dict(HERE), (None, 0))(
        ["", "", "", "", "run", "--plan", f"{shard.folder}/plan.toml", "", f"{shard.folder}/run-1"], []
    )
    shard.end("complete")
    assert said(capsys, "sweep", "--out", str(out), "--shard", "1")[:2] == (0, "shard 1: complete\n")
    exit_status, told, _ = said(capsys, "sweep", "--status", "--json", "--out", str(out))
    states = json.loads(told)
    assert exit_status == 0 and (states["done"], states["size"]) == (3, 6)
    assert [one["state"] for one in states["shards"]] == ["open", "complete"]


def programs(folder: Path, sbatch: str) -> None:
    """Slurm's commands, of which this one alone does something."""
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (folder / name).write_text(f"#!/bin/sh\n{sbatch if name == 'sbatch' else ''}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


@needs_submitit
def test_jobs_that_end_before_they_begin_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node has no Python: Slurm takes them, and nothing of them is ever seen."""
    programs(tmp_path / "bin", sbatch="echo Submitted batch job 7")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    sweep = new_sweep(Plan.grid(**read_plan(plan_file(tmp_path))), tmp_path / "sweep", 2)
    found = Jobs(sweep, Asked(cluster="slurm")).see_through(lambda status: None, looks=0.0)
    assert [one.state for one in found.states] == ["failed"] * 2
    assert found.reasons() == [
        "2 shards (0, 1) failed with 0 of 6 workloads: 4 jobs ended without a result; "
        f"what they printed is in {sweep.folder / 'jobs'}"
    ]


@needs_submitit
def test_what_sbatch_refuses_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same cluster; and where there is no Slurm at all. The sweep that was cut is kept."""
    out = tmp_path / "sweep"
    words = ["sweep", str(plan_file(tmp_path)), "--cluster", "slurm", "--partition", "no", "--out", str(out)]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert said(capsys, *words)[2][-1].startswith("attnlab: no Slurm here: there is no sbatch; ")
    programs(tmp_path / "bin", sbatch="echo 'sbatch: error: no such partition' >&2; exit 1")
    again = f"sweep --resume --cluster slurm --out {out}"
    exit_status, printed, (line,) = said(capsys, *again.split())
    assert (exit_status, printed) == (2, "") and line.endswith(f"go on with: attnlab {again}")
    assert line.startswith("attnlab: Slurm takes no such job: sbatch: error: no such partition; ")


def test_an_estimate_is_learned_from_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hours, money, the time on so many machines, and how far such sums are off."""
    file, run = plan_file(tmp_path), tmp_path / "run"
    Fake(dict(HERE), (None, 0))(["", "", "", "", "run", "--plan", str(file), "", str(run)], [])
    found = read_run(run)
    (run / "results.jsonl").unlink()
    found.append([replace(one, race_seconds=30.0) for one in found.results])
    words = ["sweep", str(file), "--estimate", "--from", str(run), "--price-per-hour", "2", "--shards", "3"]
    exit_status, printed, _ = said(capsys, *words)
    assert exit_status == 0 and "6 workloads in 3 shards: 0.05 machine hours, which cost 0.1 at 2" in printed
    found = json.loads(said(capsys, *words, "--json")[1])
    assert found["hours"] == pytest.approx(0.05) and found["wall_hours"] == pytest.approx(0.05 / 3)
    assert len(found["seconds"]) == 6 and len(found["shard_seconds"]) == found["machines"] == 3
    shortest = [*words[:-2], "--hours-per-shard", "1e-320"]
    assert "6 workloads in 6 shards" in said(capsys, *shortest)[1]


def test_another_version_is_refused_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To go on as well as to do a shard; how far it is may still be asked."""
    out = tmp_path / "sweep"
    said(capsys, "sweep", str(plan_file(tmp_path)), "--cut", "--out", str(out))
    here = read_sweep(out).told.attnlab
    monkeypatch.setattr(sweep_folder, "version", lambda name: "99.0")
    for words in (["--resume"], ["--shard", "0"]):
        exit_status, _, (line,) = said(capsys, "sweep", *words, "--out", str(out))
        assert exit_status == 2 and f"is of attnlab {here}, and this is attnlab 99.0" in line
    exit_status, told, _ = said(capsys, "sweep", "--status", "--out", str(out))
    assert exit_status == 0 and told.startswith("0 of 6 workloads; shards: 1 open")
