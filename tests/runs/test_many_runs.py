"""Many runs: the shards of a plan, and one table of all runs."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from small_runs import plan, record

from attnlab.errors import NotStored
from attnlab.runs.execute import AGAIN, carry_out, missing, resolve
from attnlab.runs.store import RUN_FILE, Run, collect, read_run

#: stands in for attnlab: copies a complete run to its --out folder, but fails for the second shard
FAKE = """
import shutil, sys
if "2/3" in sys.argv:
    sys.exit("the second one has no luck")
shutil.copytree(sys.argv[1], sys.argv[sys.argv.index("--out") + 1])
"""


#: stands in for attnlab: interrupts its parent process, and writes a file when it is terminated
INTERRUPTS = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[2]).touch()))
os.kill(os.getppid(), int(sys.argv[1]))
signal.pause()
"""
ASKED = replace(plan(), workloads=tuple(plan().workloads[0].with_(keys=keys) for keys in (8, 9, 10)))


def stored(folder: Path, *, complete: bool = True, shard: str = "1/3") -> Run:
    """Store a small run of one shard of `ASKED`."""
    folder.mkdir(parents=True)
    run = record(folder)
    run.plan = resolve(ASKED.shard(shard))[0]
    run.id, run.complete = folder.name, complete
    run.save()
    return run


def test_only_the_shards_that_are_missing_are_run_and_a_failed_one_is_named(tmp_path) -> None:
    """The first shard is stored already; the others run on this machine."""
    whole, out = stored(tmp_path / "whole"), tmp_path / "out"
    stored(out / "shard-1")
    jobs = list(missing(ASKED, ["--plan", "x.toml"], 3, out))
    assert [name for name, _ in jobs] == ["shard-2", "shard-3"]
    assert jobs[0][1][:5] == ["run", "--plan", "x.toml", "--shard", "2/3"]
    said: list[str] = []
    fake = [sys.executable, "-c", FAKE, str(whole.folder)]
    assert carry_out(jobs, out, tell=said.append, program=fake) == ["shard-2"] and said == ["shard-2 failed"]
    assert read_run(out / "shard-3").results == whole.results
    with pytest.raises(ValueError, match="shard-3 holds a run of another plan"):  # a copied shard
        list(missing(ASKED, [], 3, out))
    shutil.rmtree(out / "shard-3")
    run = stored(out / "shard-2", complete=False, shard="2/3")
    jobs = list(missing(ASKED, [], 3, out))
    assert jobs[0] == ("shard-2", ["run", "--resume", str(run.folder)]) and jobs[1][0] == "shard-3"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_shards_lets_the_one_at_work_write_its_report(number: int, tmp_path: Path) -> None:
    program = [sys.executable, "-c", INTERRUPTS, str(int(number)), str(tmp_path / "report")]
    # a process that was started in the background may ignore Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=AGAIN):
            carry_out([("shard-1", []), ("shard-2", [])], tmp_path, program=program)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "report").exists()


def test_all_runs_below_folders_become_one_table(tmp_path: Path) -> None:
    """Each run counts once, and an unreadable one is named. One column has workloads with and without causal mask."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'attnlab[collect]'")
    mixed = stored(tmp_path / "a")
    causal = mixed.results[0].workload.with_(causal=True)
    mixed.plan = replace(ASKED, workloads=(*ASKED.workloads, causal))
    mixed.save()
    mixed.append([replace(one, workload=causal) for one in mixed.results])
    stored(tmp_path / "deep" / "b")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / RUN_FILE).write_text("{")
    folders = [tmp_path, tmp_path / "a"]
    runs, rows, skipped = collect(folders, tmp_path / "all.parquet")
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert (runs, rows) == (2, 6) and len(table) == 6 and set(table["causal"]) == {"False", "top_left"}
    assert set(table["run"]) == {"a", "b"} and set(table["outcome"]) == {"measured", "declined"}
    assert table["value"].dropna().tolist() == [2.0] * 3 and set(table["keys"]) == {8}
    assert len(skipped) == 1 and "bad" in skipped[0]
    with pytest.raises(ValueError, match=r"no run can be read: .*bad/run\.json"):
        collect([tmp_path / "bad"], tmp_path / "none.parquet")
    with pytest.raises(NotStored, match=r"x\.parquet cannot be written: .*non-existent"):
        collect([tmp_path / "a"], tmp_path / "gone" / "x.parquet")
