"""A run whose conductor or workers are killed at random moments, gone on with until it is complete."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from attnlab.runs.store import read_run
from robustness_parts import Figures, say

SOAK = ["--backends", "numpy_vectorized,numpy_blocked", "--lengths", "8,16,32,64", "--heads", "1,2,4"]
SOAK += ["--seconds", "0.3", "--processes", "2", "--experiments", "none"]


def soak(wanted: int, keep: Callable[[Figures], None]) -> Figures:
    """Kill the conductor, or one of its workers, at a random moment; go on; until so many kills are counted.

    The figures so far are kept after every run that was completed.
    """
    generator, kills = random.Random(0), Counter[str]()
    figures: Figures = {"runs": 0, "lost": 0, "doubled": 0, "different": 0, "broken": 0, "left": 0}
    with tempfile.TemporaryDirectory(prefix="attnlab-soak-") as folder:
        place = Path(folder)
        _finish(place / "whole", lambda: None)
        whole = _cells(place / "whole")
        while sum(kills.values()) < wanted:
            run = place / f"run{figures['runs']}"
            _finish(run, lambda: _strike(generator, kills, wanted))
            figures["runs"] += 1
            found = _cells(run)
            figures["lost"] += len(whole.keys() - found.keys())
            figures["doubled"] += sum(count > 1 for count in found.values())
            # a worker that is killed is an outcome, and no fault of the store
            figures["different"] += len(found.keys() - whole.keys())
            figures["broken"] += subprocess.call([*_ATTNLAB, "doctor", str(run)], stdout=subprocess.DEVNULL)
            figures["left"] += _left()
            keep({**figures, "kills": dict(kills), "cells": len(whole)})
            say(f"soak: {sum(kills.values())} kills in {figures['runs']} runs")
    return {**figures, "kills": dict(kills), "cells": len(whole)}


_ATTNLAB = [sys.executable, "-P", "-m", "attnlab"]
#: in the environment of every process that comes from here, so that those of others are not counted
_MARK, _OWN = "ATTNLAB_SOAK", secrets.token_hex(8)
#: seconds in which a process may still end by itself
_ENDING = 5.0


def _finish(run: Path, strike: Callable[[], Callable[[int], bool] | None]) -> None:
    """Start the run, go on with it after every kill of its conductor, until it is complete."""
    for _ in range(1000):
        words = ["--resume", str(run)] if (run / "run.json").exists() else [*SOAK, "--out", str(run)]
        process = subprocess.Popen(
            [*_ATTNLAB, "run", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, _MARK: _OWN},
        )
        killer = strike()
        if killer is not None:
            killer(process.pid)
        _, told = process.communicate()
        if process.returncode == 0:
            return
        if process.returncode not in (-signal.SIGKILL, 1):
            raise SystemExit(f"the run ended with {process.returncode}: {told.decode()[-500:]}")
    raise SystemExit("the run never ended")


def _strike(generator: random.Random, kills: Counter[str], wanted: int) -> Callable[[int], bool] | None:
    """What kills after a random time; nobody once there were enough."""
    if sum(kills.values()) >= wanted or generator.random() < 0.1:
        return None
    who, after = generator.choice(["conductor", "conductor", "worker"]), generator.uniform(0.0, 6.0)

    def kill(conductor: int) -> bool:
        time.sleep(after)
        try:
            process = psutil.Process(conductor)
            if who == "worker":
                workers = [one for one in process.children() if "measuring.worker" in " ".join(one.cmdline())]
                if not workers:
                    return False
                process = generator.choice(workers)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            process.kill()
        except psutil.Error:
            return False
        kills[who] += 1
        return True

    return kill


def _left() -> int:
    """Processes that come from the run, whoever started them, and do not end."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # of another user's process the environment is not to be read
            if process.environ().get(_MARK) == _OWN:
                found.append(process)
    return len(psutil.wait_procs(found, timeout=_ENDING)[1])


def _cells(run: Path) -> Counter[tuple[str, str]]:
    return Counter((one.workload.label, one.contender) for one in read_run(run).results)
