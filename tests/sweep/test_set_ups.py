"""The files of docs/sweeps: read by their own readers, their commands by the real parser, and run where they can be."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import slurm as slurm_here
import yaml
from slurm import Slurm, reason_to_skip, wait_until
from sweeping import PLAN, cells, plan_file

from attnlab.cli.app import app
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.sweep_cutting import joined
from attnlab.runs.sweep_folder import read_sweep
from attnlab.runs.sweep_merging import results
from attnlab.runs.sweep_progress import status

DOCS = Path(__file__).parents[2] / "docs"
FILES = [DOCS / "sweeps.md", *sorted((DOCS / "sweeps").iterdir())]
#: what shells, CI and Kubernetes put in the place of their variables
_VARIABLE = re.compile(r"\$\{\{.*?\}\}|\$\{?\w+\}?|\$\(\w+\)")


def commands(text: str) -> Iterator[list[str]]:
    """Every ``attnlab`` command in `text`, with 7 for each variable."""
    for line in text.splitlines():
        listed = re.search(r'\["attnlab", .*\]', line)
        if listed:
            yield [_VARIABLE.sub("7", str(word)) for word in yaml.safe_load(listed[0])[1:]]
            continue
        found = re.search(r"(?:^|[ #`\"])attnlab ((?:sweep|run|report) [^`|;#]*)", line)
        if found:
            words = found[1].strip()
            yield shlex.split(_VARIABLE.sub("7", words[:-1] if words.count('"') % 2 else words))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_its_commands_are_commands(file: Path) -> None:
    """Of this version: every option exists and takes what it is given."""
    found = list(commands(file.read_text(encoding="utf-8")))
    assert found, "a set-up without a command sets nothing up"
    for words in found:
        command = app.commands[words[0]]
        context = command.make_context(words[0], list(words[1:]))
        assert not context.args, words


def test_a_command_with_a_slip_is_seen() -> None:
    """So that the test above can fail."""
    (words,) = commands('      - run: attnlab sweep --outt "$HOME/x" --shard ${{ matrix.shard }}')
    assert words == ["sweep", "--outt", "7/x", "--shard", "7"]
    with pytest.raises(click.UsageError, match="outt"):
        app.commands["sweep"].make_context("sweep", words[1:])
    assert list(commands('command: ["attnlab", "sweep", "$(INDEX)"]')) == [["sweep", "7"]]


def test_the_plan_is_one() -> None:
    """Of 36 workloads; with the other one of both directions."""
    forward, training = (
        Plan.grid(**read_plan(DOCS / "sweeps" / f"{one}.toml")) for one in ("plan", "training")
    )
    assert len(forward.workloads) == 36
    assert len(joined({"plan": forward, "training": training}).workloads) == 72


def test_kubernetes_has_one_pod_a_shard_and_one_a_node() -> None:
    """And gives a shard three further pods, not endless ones."""
    job: dict[str, Any] = yaml.safe_load((DOCS / "sweeps" / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["backoffLimitPerIndex"] == 3 and pod["restartPolicy"] == "Never"
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    cut = re.search(
        r"--shards (\d+) --cut", (DOCS / "sweeps" / "kubernetes.yaml").read_text(encoding="utf-8")
    )
    assert cut is not None and int(cut[1]) == spec["completions"]


def environment(tmp_path: Path) -> dict[str, str]:
    """With the command on the path, and a host of the test's own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}


def test_the_ci_matrix_is_carried_out(tmp_path: Path) -> None:
    """Every step that is a command, of every job, with folders handed over as the artifacts are."""
    found = yaml.safe_load((DOCS / "sweeps" / "ci-matrix.yml").read_text(encoding="utf-8"))
    shards = found["jobs"]["shard"]["strategy"]["matrix"]["shard"]
    handed = tmp_path / "report" / "handed-over"
    handed.mkdir(parents=True)
    for shard in [*shards, None]:
        job = found["jobs"]["report" if shard is None else "shard"]
        folder = tmp_path / ("report" if shard is None else f"job-{shard}")
        (folder / "docs" / "sweeps").mkdir(parents=True)
        plan_file(folder / "docs" / "sweeps", PLAN.replace("lengths = [8, 16, 32]", "lengths = [8, 16]"))
        for step in job["steps"]:
            line = step.get("run", "").replace("${{ matrix.shard }}", str(shard))
            if line and not line.startswith("pip install"):
                done = subprocess.run(
                    ["bash", "-euc", line], cwd=folder, env=environment(tmp_path), capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
                assert done.returncode == 0, (line, done.stderr)
            if "upload-artifact" in step.get("uses", "") and shard is not None:
                path = step["with"]["path"].replace("${{ matrix.shard }}", str(shard))
                (folder / path).rename(handed / f"shard-{shard}")
    sweep = read_sweep(tmp_path / "report" / "sweep")
    assert cells(results(sweep)).total() == 8 and status(sweep).over
    assert len(list((tmp_path / "report" / "sweep" / "machines").glob("*/report.md"))) == 1


def test_hosts_take_every_so_manieth_shard(tmp_path: Path) -> None:
    """With a stand-in for ssh that runs on this host, whatever it is called: one measures at a time."""
    remote = tmp_path / "remote"
    remote.write_text('#!/bin/sh\nshift\nexec "$@"\n', encoding="utf-8")
    remote.chmod(0o755)
    words = [
        DOCS / "sweeps" / "hosts.sh",
        plan_file(tmp_path, PLAN.replace("[8, 16, 32]", "[8]")),
        "sweep",
        "a",
        "b",
    ]
    done = subprocess.run(
        ["bash", *map(str, words)], cwd=tmp_path, env={**environment(tmp_path), "REMOTE": str(remote)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sweep = read_sweep(tmp_path / "sweep")
    assert [one.state for one in status(sweep).states] == ["complete", "complete"]
    assert cells(results(sweep)).total() == 4


#: stands for the library, where it is not installed: it has one worker, on this host, for which nothing is pickled
_DISTRIBUTED = """
class Task:
    def __init__(self, told): self.told = told
    def result(self): return self.told
class Client:
    def __init__(self, address): assert address == "tcp://here:8786"
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def submit(self, function, *words, pure): return Task(function(*words))
as_completed = list
"""


def test_dask_does_every_shard(tmp_path: Path) -> None:
    """A task each; a shard that is not complete is its exit status."""
    (tmp_path / "distributed.py").write_text(_DISTRIBUTED, encoding="utf-8")
    plan = plan_file(tmp_path, PLAN.replace("[8, 16, 32]", "[8]"))
    words = [sys.executable, str(DOCS / "sweeps" / "dask_shards.py"), "tcp://here:8786", "sweep"]
    there = {**environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    for line in (shlex.split(f"attnlab sweep {plan} --shards 2 --cut --out sweep"), words):
        done = subprocess.run(line, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert sorted(one for one in done.stdout.splitlines() if "exit status" in one) == [
        "shard 0: exit status 0",
        "shard 1: exit status 0",
    ]
    sweep = read_sweep(tmp_path / "sweep")
    assert status(sweep).over and cells(results(sweep)).total() == 4
    file = tmp_path / "sweep" / "sweep.json"
    file.write_text(file.read_text(encoding="utf-8").replace(sweep.told.attnlab, "99.0"), encoding="utf-8")
    assert subprocess.run(words, cwd=tmp_path, env=there, capture_output=True, check=False).returncode == 2


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
def test_the_array_runs_on_slurm_without_submitit(tmp_path: Path) -> None:
    """Cut here, carried out by two nodes."""
    with Slurm(tmp_path / "cluster") as slurm:
        there = {**environment(tmp_path), **slurm.variables}
        plan = plan_file(tmp_path, PLAN.replace("[8, 16, 32]", "[8]"))
        for line in (
            f"attnlab sweep {plan} --shards 2 --cut --out sweep",
            f"sbatch --array=0-1 {DOCS / 'sweeps' / 'slurm-array.sh'} sweep",
        ):
            subprocess.run(shlex.split(line), cwd=tmp_path, env=there, check=True, capture_output=True)
        wait_until(lambda: not slurm.queue(), "both jobs have ended")
    sweep = read_sweep(tmp_path / "sweep")
    assert [one.state for one in status(sweep).states] == ["complete", "complete"]
    assert cells(results(sweep)).total() == 4


def test_killing_a_sweep_at_random_asks_for_a_slurm_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a command of its own: what keeps tests from starting a Slurm says nothing to it."""
    monkeypatch.delenv("ATTNLAB_TEST_SLURM", raising=False)
    spec = importlib.util.spec_from_file_location(
        "sweep_kills", DOCS.parent / "benchmarks" / "sweep_kills.py"
    )
    assert spec is not None and spec.loader is not None
    kills = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kills)
    monkeypatch.setattr(sys, "argv", ["sweep_kills.py"])
    monkeypatch.setattr(kills, "killed", lambda *_: pytest.fail("it would start"))
    monkeypatch.setattr(slurm_here, "_program", lambda name: None)
    with pytest.raises(SystemExit, match="Slurm is not installed: there is no munged"):
        kills.main()
