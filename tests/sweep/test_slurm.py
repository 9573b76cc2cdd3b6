"""Sweeps on a real Slurm of two nodes on this host, started and stopped here: `tox -e slurm`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Slurm, reason_to_skip, wait_until
from sweeping import PLAN, cells, cells_of, plan_file

from attnlab.runs.execute import run
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.runs.sweep_folder import read_sweep

_REASON = reason_to_skip()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")
pytest.importorskip("submitit", reason="submitit is not installed; pip install 'attnlab[sweep]'")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two idle nodes."""
    with Slurm(tmp_path_factory.mktemp("slurm") / "cluster") as there:
        yield there


def attnlab(slurm: Slurm, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of attnlab's, to its end."""
    command = [sys.executable, "-P", "-m", "attnlab", *words]
    return subprocess.run(command, env=slurm.environment(), capture_output=True, text=True, check=False)


def test_a_job_array_gives_the_same_set_of_results_as_one_run(slurm: Slurm, tmp_path: Path) -> None:
    """On two nodes, which hold the lock of their host in turn; the report is written from the shards."""
    file, out = plan_file(tmp_path), tmp_path / "sweep"
    options = ["--cluster", "slurm", "--partition", "main", "--shards", "3"]
    found = attnlab(slurm, "sweep", str(file), *options, "--out", str(out))
    assert found.returncode == 0, found.stderr
    assert "6 of 6 workloads; shards: 3 complete" in found.stdout
    sweep = read_sweep(out)
    unbroken = run(Plan.grid(**read_plan(file)), tmp_path / "unbroken")
    assert cells_of(sweep) == cells(unbroken.results)
    journals = [shard.journal() for shard in sweep.shards]
    nodes = {one["node"] for journal in journals for one in journal if one["event"] == "started"}
    assert nodes == {"node1", "node2"}
    spans = sorted((one[0]["time"], one[1]["time"]) for one in journals)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), "two at a time"
    assert len(list((out / "machines").glob("*/report.md"))) == 1
    told = json.loads(attnlab(slurm, "sweep", "--status", "--json", "--out", str(out)).stdout)
    assert (told["done"], told["size"], told["seconds_left"]) == (6, 6, 0)


def test_a_job_whose_time_is_over_stops_in_order_and_is_begun_again(slurm: Slurm, tmp_path: Path) -> None:
    """On the signal that Slurm sends before: what is done is kept, and the job waits for its next turn."""
    out = tmp_path / "sweep"
    longer = PLAN.replace("max_rounds = 2", "max_rounds = 300").replace(
        "turn_seconds = 0.0001", "turn_seconds = 0.02"
    )
    options = ["--cluster", "slurm", "--shards", "1", "--detach"]
    found = attnlab(slurm, "sweep", str(plan_file(tmp_path, longer)), *options, "--out", str(out))
    assert found.returncode == 0, found.stderr
    shard = read_sweep(out).shard(0)
    (job,) = slurm.queue()
    wait_until(lambda: shard.done(), "the first workload is done")
    try:
        subprocess.run(["scancel", "--signal=USR2", job], env=slurm.environment(), check=True)
        wait_until(lambda: slurm.queue().get(job) == "PENDING", "it waits again")
        began, ended = shard.journal()
        assert (began["event"], ended["event"], ended["status"]) == ("started", "ended", 130)
        assert 1 <= ended["done"] < 6 and not read_run(shard.runs()[0]).complete
    finally:
        subprocess.run(["scancel", *slurm.queue()], env=slurm.environment(), check=True)
        wait_until(lambda: not slurm.queue(), "the job has ended")
