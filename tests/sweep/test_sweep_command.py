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
from pathlib import Path
from types import SimpleNamespace

import pytest
from slurm import wait_until
from sweeping import HERE, PLAN, Fake, cells_of, needs_submitit, plan_file

from attnlab.__main__ import main
from attnlab.problem.result import Result
from attnlab.runs import dataset
from attnlab.runs import sweep_folder as folder
from attnlab.runs import sweep_jobs as cluster
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import Run
from attnlab.runs.sweep_folder import append_line, new_sweep, read_sweep
from attnlab.runs.sweep_progress import status


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    """Exit status, what was printed, and the lines of errors."""
    with pytest.raises(SystemExit) as end:
        main(words)
    told = capsys.readouterr()
    return int(end.value.code or 0), told.out, told.err.splitlines()


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
        assert "No dataset: pyarrow is not installed" in printed
        return
    assert f"The dataset: {out / 'dataset'} (2 workloads added)" in printed
    stored = [Result.to_json(one) for run in dataset.runs(out / "dataset") for one in run.results]
    there = [Result.to_json(one) for shard in sweep.shards for one in shard.results()]
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
    shard.note("outcome", outcome="complete", series=1)
    assert said(capsys, "sweep", "--out", str(out), "--shard", "1")[:2] == (0, "shard 1: complete\n")
    exit_status, told, _ = said(capsys, "sweep", "--status", "--json", "--out", str(out))
    states = json.loads(told)
    assert exit_status == 0 and (states["done"], states["size"]) == (3, 6)
    assert [one["state"] for one in states["shards"]] == ["open", "complete"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a sweep needs a plan: attnlab sweep PLAN.toml"),
        (["nowhere.toml"], "the plan file nowhere.toml cannot be read: No such file"),
        (["{plan}", "--cluster", "pbs"], "'--cluster': 'pbs' is not one of 'slurm', 'local'"),
        (["{plan}", "--partition", "gpu"], "--partition is for Slurm: give --cluster slurm too"),
        (["{plan}", "--detach"], "--detach is for Slurm"),
        (["{plan}", "--shards", "0"], "--shards must be above 0, got 0"),
        (["{plan}", "--shards", "2", "--hours-per-shard", "1", "--from", "{out}"], "give one of them"),
        (["{plan}", "--hours-per-shard", "0", "--from", "{out}"], "--hours-per-shard must be above 0, got 0"),
        (["{plan}", "--job-hours", "0"], "--job-hours must be above 0, got 0"),
        (["{plan}", "--at-once", "0"], "--at-once must be above 0, got 0"),
        (["{plan}", "--machines", "3"], "--machines and --price-per-hour are for --estimate"),
        (["{plan}", "--estimate", "--machines", "0"], "--machines must be above 0, got 0"),
        (["{plan}", "--estimate", "--price-per-hour", "nan"], "--price-per-hour must be above 0, got nan"),
        (["{plan}", "--estimate", "--sample", "4"], "5 races or more, got a sample of 4 of a plan of 6"),
        (["{plan}", "--sbatch", "qos"], "--sbatch takes NAME=VALUE"),
        (["{plan}", "--estimate", "--from", "{out}"], "holds no run"),
        (["{plan}", "--status"], "which holds its plan: give none"),
        (["--status"], "holds no sweep"),
        (["--resume"], "holds no sweep"),
        (["--shard", "0"], "holds no sweep"),
        (["{bad}"], "bad.toml: unknown key 'length'; did you mean lengths"),
        (["{none}"], "cannot be read: "),
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
def test_what_sbatch_refuses_is_one_line_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same cluster; and where there is no Slurm at all. The sweep that was cut is kept."""
    out = tmp_path / "sweep"
    words = ["sweep", str(plan_file(tmp_path)), "--cluster", "slurm", "--partition", "no", "--out", str(out)]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    missing = "no Slurm here: there is no sbatch; run this where sbatch works, or give --cluster local"
    assert said(capsys, *words)[2][-1] == f"attnlab: {missing}"
    for name in ("sbatch", "srun", "squeue", "scancel"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            "#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n", encoding="utf-8"
        )
        program.chmod(0o755)
    again = ["sweep", "--resume", "--cluster", "slurm", "--out", str(out)]
    assert said(capsys, *again) == (
        2,
        "",
        [
            "attnlab: Slurm takes no such job: sbatch: error: no such partition; nothing is lost, "
            f"go on with: attnlab sweep --resume --cluster slurm --out {out}"
        ],
    )


def test_a_disk_that_is_full_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the sweep stays as it is."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "a file"))

    monkeypatch.setattr(cluster, "work", full)
    out = tmp_path / "sweep"
    exit_status, printed, errors = said(capsys, "sweep", str(plan_file(tmp_path)), "--out", str(out))
    assert (exit_status, printed) == (1, "")
    assert errors[-1:] == [
        f"attnlab: the sweep in {out} stops: No space left on device ({tmp_path / 'a file'}); what is done is kept, "
        "--resume goes on"
    ]
    assert read_sweep(out).told.sizes == (6,)


def test_a_list_of_jobs_that_was_cut_off_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """A disk may be full while it is written."""
    sweep = new_sweep(Plan.grid(**read_plan(plan_file(tmp_path))), tmp_path / "sweep", 3)
    jobs = sweep.folder / cluster.SUBMITTED
    jobs.write_text('[0, "17_0"]\n[1, "17', encoding="utf-8")
    append_line(jobs, '[2, "18"]')
    assert cluster.Jobs.submitted(SimpleNamespace(sweep=sweep)) == {0: "17_0", 2: "18"}


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
    assert "out-sample holds a sample of another plan: give another --out, or learn from it" in line


def test_an_estimate_is_learned_from_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hours, money, the time on so many machines, and how far such sums are off."""
    file, run = plan_file(tmp_path), tmp_path / "run"
    Fake(dict(HERE), (None, 0))(["", "", "", "", "run", "--plan", str(file), "", str(run)], [])
    lines = (run / "results.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.dumps({**json.loads(line), "race_seconds": 30.0}) for line in lines]
    (run / "results.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["sweep", str(file), "--estimate", "--from", str(run), "--price-per-hour", "2", "--shards", "3"]
    exit_status, printed, _ = said(capsys, *words)
    assert exit_status == 0 and "6 workloads in 3 shards: 0.05 machine hours, which cost 0.1 at 2" in printed
    found = json.loads(said(capsys, *words, "--json")[1])
    assert found["hours"] == pytest.approx(0.05) and found["wall_hours"] == pytest.approx(0.05 / 3)
    assert len(found["seconds"]) == 6 and len(found["shard_seconds"]) == found["machines"] == 3


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
