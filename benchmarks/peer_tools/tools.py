"""The tools, each as people use it by its own documentation, started as a command in a folder of its own.

``seconds`` is the wall-clock time that a tool is meant to take for a pair, start-up included. What it really took
is stored: a tool that starts many processes cannot be stopped at will.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_tools.pairs import Pair

HOME = Path(__file__).parents[1]
#: seconds that a process takes to start and to import, about; taken off the time that is left for calls
START = 2.0
#: seconds that a process of pyperf takes, about: it starts, warms up and takes two values
PYPERF_PROCESS = 1.5
#: seconds of processes that `attnlab compare` starts, checks and stops, about: its rounds get what is left
ATTNLAB_START = 6.0
#: seconds after which a tool is ended and its trial has failed
PATIENCE = 150.0

_TEST_FILE = """\
from peer_tools.child import calls

first, second = calls()


def test_first(benchmark):
    benchmark(first)


def test_second(benchmark):
    benchmark(second)
"""


def command(words: list[str], folder: Path, pair: Pair, side: str = "") -> str:
    """The standard output of a command that measures `pair`. Raises RuntimeError where it fails or takes too long."""
    variables = {"PEER_PAIR": json.dumps(pair.to_dict()), "PEER_SIDE": side, "MPLBACKEND": "Agg"}
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **variables, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it started ends with it
    ) as process:
        try:
            told, wrong = process.communicate(timeout=PATIENCE)
        except BaseException as fault:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(fault, subprocess.TimeoutExpired):
                raise RuntimeError(f"did not end within {PATIENCE:g} s") from None
            raise
    if process.returncode:
        last = (wrong.strip() or told.strip()).splitlines()[-1:] or ["no word"]
        raise RuntimeError(f"exit {process.returncode}: {last[0][:300]}")
    return told


def child(what: str, folder: Path, pair: Pair, seconds: float, side: str = "") -> dict[str, Any]:
    """What a function of `peer_tools.child` found in a process of its own."""
    told = command(["-m", "peer_tools.child", what, f"{seconds:g}"], folder, pair, side)
    found: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
    return found


def left_for_calls(seconds: float) -> float:
    """Of `seconds`, what one process that must first start has for its calls."""
    return max(seconds - START, seconds / 2)


def pytest_benchmark(pair: Pair, seconds: float, folder: Path) -> dict[str, Any]:
    """Two tests in one pytest process, half of the time for each."""
    (folder / "test_pair.py").write_text(_TEST_FILE, encoding="utf-8")
    each = left_for_calls(seconds) / 2
    options = [f"--benchmark-max-time={each:g}", "--benchmark-json=told.json", "-q", f"--rootdir={folder}"]
    command(["-m", "pytest", *options, "test_pair.py"], folder, pair)
    told = json.loads((folder / "told.json").read_text(encoding="utf-8"))["benchmarks"]
    kept = ("min", "q1", "median", "q3", "mean", "stddev", "rounds")
    sides = {one["name"].removeprefix("test_"): {k: one["stats"][k] for k in kept} for one in told}
    return {**sides, "ratio": sides["second"]["median"] / sides["first"]["median"]}


def torch_benchmark(pair: Pair, seconds: float, folder: Path) -> dict[str, Any]:
    """torch.utils.benchmark, both in one process."""
    return child("torch", folder, pair, left_for_calls(seconds))


def perfplot(pair: Pair, seconds: float, folder: Path) -> dict[str, Any]:
    """perfplot, both in one process."""
    return child("perfplot", folder, pair, left_for_calls(seconds))


def pyperf(pair: Pair, seconds: float, folder: Path) -> dict[str, Any]:
    """One run of each side in at least three worker processes of two values (those of ``--fast``), then compare_to."""
    processes = max(3, round(seconds / 2 / PYPERF_PROCESS) - 1)  # one more calibrates
    script = str(HOME / "peer_tools" / "pyperf_call.py")
    for side in ("first", "second"):
        options = ["-q", "--copy-env", "-p", str(processes), "-n", "2", "-o", f"{side}.json"]
        command([script, *options], folder, pair, side)
    text = command(["-m", "pyperf", "compare_to", "first.json", "second.json"], folder, pair)
    values = {side: pyperf_values(folder / f"{side}.json") for side in ("first", "second")}
    ratio = statistics.fmean(values["second"]) / statistics.fmean(values["first"])
    said = "not significant" not in text.lower()
    return {**{side: {"values": v} for side, v in values.items()}, "ratio": ratio, "significant": said}


def pyperf_values(file: Path) -> list[float]:
    """Seconds a call: every value of every worker in a file that pyperf wrote."""
    (told,) = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
    return [value for run in told["runs"] for value in run.get("values", ())]


def attnlab(pair: Pair, seconds: float, folder: Path) -> dict[str, Any]:
    """``attnlab compare`` as typed, five processes of each."""
    rounds = max(seconds - ATTNLAB_START, seconds / 4)
    shape = ["--heads", str(pair.heads), "--length", str(pair.length)]
    words = [
        "compare",
        pair.first,
        pair.second,
        *shape,
        "--seconds",
        f"{rounds:g}",
        "--processes",
        "5",
        "--json",
    ]
    told = json.loads(command(["-m", "attnlab", *words], folder, pair))["contenders"]
    first, second = ({"median": one["seconds_median"], "rounds": one["rounds"]} for one in told)
    known = {name: told[1][name] for name in ("ratio", "ratio_low", "ratio_high", "verdict")}
    if any(one["outcome"] != "measured" for one in told):
        raise RuntimeError(f"no ratio: {told[0]['reason'] or told[1]['reason'] or told[1]['outcome']}")
    return {"first": first, "second": second, **known}


Measure = Callable[[Pair, float, Path], dict[str, Any]]
#: by the name that tables use: what measures, the package it needs, and the distribution that tells its version
TOOLS: dict[str, tuple[Measure, str, str]] = {
    "pytest-benchmark": (pytest_benchmark, "pytest_benchmark", "pytest-benchmark"),
    "torch.utils.benchmark": (torch_benchmark, "torch", "torch"),
    "pyperf": (pyperf, "pyperf", "pyperf"),
    "perfplot": (perfplot, "perfplot", "perfplot"),
    "attnlab": (attnlab, "attnlab", "attnlab"),
}


def version(tool: str) -> str | None:
    """Its version, or None where it is not installed."""
    _, package, distribution = TOOLS[tool]
    return importlib.metadata.version(distribution) if importlib.util.find_spec(package) else None
