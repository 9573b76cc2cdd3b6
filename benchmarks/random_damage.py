"""What damages runs and files at random, for ``python benchmarks robustness``: kills, and malformed input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from common import ATTNLAB, REPOSITORY, say

from attnlab.backends.contender import Contender
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

#: what a part measured, as it is stored
Figures = dict[str, Any]

# -- kills ------------------------------------------------------------------------------------------------------------

_SOAK = "run --backends numpy_vectorized,numpy_blocked --lengths 8,16,32,64 --heads 1,2,4 --seconds 0.3"
#: in the environment of every process that comes from here, so that those of others are not counted
_MARK, _OWN = "ATTNLAB_SOAK", str(os.getpid())


def soak(asked: Namespace) -> Iterator[Figures]:
    """Killed at random, and gone on with by `attnlab run --resume` until complete"""
    # the figures so far are told after every run that was completed
    generator, kills = random.Random(0), Counter[str]()
    figures: Figures = dict.fromkeys(("runs", "lost", "doubled", "different", "left"), 0)
    with tempfile.TemporaryDirectory(prefix="attnlab-soak-") as folder:
        whole = _cells(Path(folder) / "whole", lambda conductor: None)
        while kills.total() < asked.kills:
            run = Path(folder) / f"run{figures['runs']}"
            found = _cells(run, lambda conductor: _strike(conductor, generator, kills, asked.kills))
            figures["runs"] += 1
            figures["lost"] += len(whole.keys() - found.keys())
            figures["doubled"] += sum(count > 1 for count in found.values())
            # a worker that is killed is an outcome, and no fault of the store
            figures["different"] += len(found.keys() - whole.keys())
            # processes that come from a run, also from its workers, and do not end within five seconds
            every = psutil.process_iter(["environ"])
            left = [one for one in every if (one.info["environ"] or {}).get(_MARK) == _OWN]
            figures["left"] += len(psutil.wait_procs(left, timeout=5.0)[1])
            say(f"soak: {kills.total()} kills in {figures['runs']} runs")
            yield figures | {"kills": dict(kills), "cells": len(whole)}


def _cells(run: Path, strike: Callable[[int], None]) -> Counter[tuple[str, str]]:
    """What a run holds that is gone on with after every kill of its conductor, until it is complete."""
    for _ in range(1000):
        started = (run / "run.json").exists()
        words = ["run", "--resume", str(run)] if started else [*_SOAK.split(), "--out", str(run)]
        marked, quiet = {**os.environ, _MARK: _OWN}, subprocess.DEVNULL
        process = subprocess.Popen([*ATTNLAB, *words], stdout=quiet, stderr=subprocess.PIPE, env=marked)
        strike(process.pid)
        _, told = process.communicate()
        if process.returncode == 0:
            return Counter((one.workload.label, one.contender) for one in read_run(run).results)
        if process.returncode not in (-signal.SIGKILL, 1):
            raise SystemExit(f"the run ended with {process.returncode}: {told.decode()[-500:]}")
    raise SystemExit("the run never ended")


def _strike(conductor: int, generator: random.Random, kills: Counter[str], wanted: int) -> None:
    """Kill the conductor or a worker after a random time; nothing once there were enough, and now and then."""
    if kills.total() >= wanted or generator.random() < 0.1:
        return
    what = generator.choice(["conductor", "conductor", "worker"])
    time.sleep(generator.uniform(0.0, 6.0))
    with suppress(psutil.Error, IndexError):
        process = psutil.Process(conductor)
        if what == "worker":
            process = generator.choice(process.children(recursive=True))
        if process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            kills[what] += 1


# -- malformed input --------------------------------------------------------------------------------------------------


def fuzz(asked: Namespace) -> Iterator[Figures]:
    """Damaged result lines, workloads, stored runs, plan files and contenders"""
    from damage import damaged  # of tests/robustness

    generator, told = random.Random(1), Counter[str]()
    before, worst = psutil.Process().memory_info().rss, 0.0
    reference = REPOSITORY / "reports" / "reference"
    workload = Workload(heads=2, queries=8, keys=8, head_dim=4, causal=True, window=(3, 0))
    plan = b'lengths = [64, 128]\nheads = [1, 4]\nbackends = ["torch_sdpa[threads=1]"]\nwindow = [3, 0]\n'
    line = (reference / "results.jsonl").read_bytes().splitlines()[0]
    run = (reference / "run.json").read_bytes()
    readers: list[tuple[Callable[[bytes], Any], bytes]] = [
        (lambda data: Result.from_json(data.decode(errors="replace")), line),
        (lambda data: Workload.from_dict(json.loads(data)), json.dumps(workload.to_dict()).encode()),
        (_file("run.json", lambda file: read_run(file.parent)), run),
        (_file("plan.toml", lambda file: Plan.grid(**read_plan(file))), plan),
        (
            lambda data: Contender.parse(data.decode(errors="replace")),
            b"torch_sdpa[threads=1,OMP_PROC_BIND=true]",
        ),
    ]
    for read, good in readers * (asked.changes // len(readers)):
        started = time.monotonic()
        try:
            read(damaged(generator, good))
            told["taken"] += 1
        except (ValueError, RecursionError):  # the latter by this script's own reading of a workload
            told["refused"] += 1
        except Exception as fault:  # the figure that must be 0
            told[f"crash {type(fault).__name__}"] += 1
            say(f"fuzz: {type(fault).__name__}: {str(fault)[:200]}")
        worst = max(worst, time.monotonic() - started)
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    yield {"told": dict(told), "longest_s": round(worst, 3), "grown_mib": round(grown, 1)}


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A reader of files, given what is in one of that name."""

    def given(data: bytes) -> Any:
        with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as folder:
            (Path(folder) / name).write_bytes(data)
            return read(Path(folder) / name)

    return given
