"""The tools that ``python benchmarks peers`` compares, each used as its own documentation says.

A tool compares torch_eager with itself. The second side waits after each call for ``planted`` percent of its time. The
tool runs as a command in a temporary folder; ``seconds`` is the wall-clock time that it should take, start included.
The time that it took is stored, because a tool that starts many processes cannot be stopped exactly. The functions that
run inside such a command are here too; the variable PEER_SIDES holds what is planted on each side.
``python peer_tools.py SECONDS`` runs PyTorch's timer and prints one line of JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: about how many seconds each takes: a process to start and import; a process of pyperf, which starts, warms up and
#: measures two values; `attnlab compare` to start, and its last visit. A tool that takes PATIENCE is ended and fails
START, PYPERF_PROCESS, ATTNLAB_START, PATIENCE = 2.0, 1.5, 4.0, 150.0
#: both sides compute this number of heads and tokens at batch 1, head_dim 64, in float32
HEADS, LENGTH = 8, 256
Found = dict[str, Any]


def calls() -> list[Callable[[], Any]]:
    """A call for each side; PEER_SIDES holds what is planted on each."""
    from attnlab.backends.discovery import load
    from attnlab.race.worker import slowed
    from attnlab.workload.workload import Workload

    backend, workload = load("torch_eager"), Workload(heads=HEADS, queries=LENGTH, keys=LENGTH)
    sides, library = os.environ["PEER_SIDES"].split(), backend.open("cpu")
    return [slowed(backend.bind(workload), library, float(side)) for side in sides]


def torch_timer(seconds: float) -> Found:
    """Timer.blocked_autorange for each side, as in PyTorch's recipe, with as many threads as a call outside it uses."""
    import torch
    from torch.utils.benchmark import Timer

    found: Found = {}
    for side, call in zip(("first", "second"), calls(), strict=True):
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        told = timer.blocked_autorange(min_run_time=seconds / 2)
        low, high = np.quantile(told.times, [0.25, 0.75]).tolist()
        figures = {"significant_figures": told.significant_figures}
        found[side] = {"median": told.median, "q1": low, "q3": high, **figures}
    return {**found, "ratio": found["second"]["median"] / found["first"]["median"]}


def command(words: list[str], folder: Path, *sides: int) -> str:
    """The standard output of a command that measures `sides`. Raises RuntimeError if it fails or takes too long."""
    variables = {"PEER_SIDES": " ".join(map(str, sides)), "ATTNLAB_CACHE": str(folder)}
    path = os.pathsep.join([str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    # the command `timeout` ends the whole process group, and so every process that the tool started
    limited = ["timeout", "--signal=KILL", f"{PATIENCE:g}", sys.executable, *words]
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    done = subprocess.run(limited, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:  # -9: it did not end in time
        raise RuntimeError(f"exit {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-300:]}")
    return done.stdout


def left_for_calls(seconds: float) -> float:
    """The part of `seconds` that one process has for its calls after its start."""
    return max(seconds - START, seconds / 2)


def torch_benchmark(planted: int, seconds: float, folder: Path) -> Found:
    """Both sides in one process."""
    told = command([__file__, f"{left_for_calls(seconds):g}"], folder, 0, planted)
    return json.loads(told.splitlines()[-1])


def pytest_benchmark(planted: int, seconds: float, folder: Path) -> Found:
    """Two tests in one pytest process, half of the time for each."""
    seconds = left_for_calls(seconds)
    tests = (f"def test_{side}(benchmark):\n    benchmark({side})\n" for side in ("first", "second"))
    text = "".join(("from peer_tools import calls\n\nfirst, second = calls()\n", *tests))
    (folder / "test_pair.py").write_text(text, encoding="utf-8")
    options = f"-q --benchmark-max-time={seconds / 2:g} --benchmark-json=told.json".split()
    command(["-m", "pytest", *options, f"--rootdir={folder}", "test_pair.py"], folder, 0, planted)
    told = json.loads((folder / "told.json").read_text(encoding="utf-8"))["benchmarks"]
    sides = {one["name"].removeprefix("test_"): one["stats"] for one in told}
    kept = {side: {name: sides[side][name] for name in ("q1", "median", "q3")} for side in sides}
    return {**kept, "ratio": sides["second"]["median"] / sides["first"]["median"]}


def pyperf(planted: int, seconds: float, folder: Path) -> Found:
    """A run of each side: at least three worker processes of two values each, as with ``--fast``; then compare_to."""
    processes = max(3, round(seconds / 2 / PYPERF_PROCESS) - 1)  # pyperf starts one more, to calibrate
    text = "import pyperf\nfrom peer_tools import calls\npyperf.Runner().bench_func('call', *calls())\n"
    (folder / "bench.py").write_text(text, encoding="utf-8")
    found: Found = {}
    for side, percent in (("first", 0), ("second", planted)):
        options = ["-q", "--copy-env", "-p", str(processes), "-n", "2", "-o", f"{side}.json"]
        command(["bench.py", *options], folder, percent)
        (told,) = json.loads((folder / f"{side}.json").read_text(encoding="utf-8"))["benchmarks"]
        found[side] = {"values": [value for run in told["runs"] for value in run.get("values", ())]}
    text = command(["-m", "pyperf", "compare_to", "first.json", "second.json"], folder)
    first, second = (statistics.fmean(found[side]["values"]) for side in ("first", "second"))
    return {**found, "ratio": second / first, "significant": "not significant" not in text.lower()}


def attnlab(planted: int, seconds: float, folder: Path) -> Found:
    """``attnlab compare`` as a user types it."""
    visits = max(seconds - ATTNLAB_START, seconds / 4)
    options = f"--heads {HEADS} --length {LENGTH} --seconds {visits:g} --json"
    second = f"torch_eager[slowed={planted}]" if planted else "torch_eager"
    words = ["-m", "attnlab", "compare", "torch_eager", second, *options.split()]
    told = json.loads(command(words, folder))["contenders"]
    if any(one["outcome"] != "measured" for one in told):
        raise RuntimeError(f"no ratio: {told[0]['reason'] or told[1]['reason'] or told[1]['outcome']}")
    return {name: told[1][name] for name in ("ratio", "ratio_low", "ratio_high", "verdict")}


#: the tools by name: each compares two sides in about the given number of seconds
TOOLS: dict[str, Callable[[int, float, Path], Found]] = {
    "pytest-benchmark": pytest_benchmark,
    "torch.utils.benchmark": torch_benchmark,
    "pyperf": pyperf,
    "attnlab": attnlab,
    "attnlab, each alone": attnlab,
}


def version(tool: str) -> str | None:
    """The version of a tool's distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version("torch" if tool.startswith("torch") else tool.partition(",")[0])
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(torch_timer(float(sys.argv[1]))))
