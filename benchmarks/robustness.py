"""What survives: faults in every phase, kills at random, malformed input, and thousands of workloads in one run.

``python benchmarks/robustness.py [PART ...] [--kills 200] [--lines 12000] [--workloads 2000]``; the parts are `matrix`,
`soak`, `fuzz`, `leaks` and `store`, all of them by default.
Each part adds its figures to ``benchmarks/robustness.json`` and ``docs/robustness.md`` is written whole from that file.
`soak` takes about five seconds a kill, `leaks` about two minutes, the others one to three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

HOME = Path(__file__).parent
sys.path.insert(0, str(HOME.parent / "tests" / "robustness"))

from matrix import DEADLINE, FAULTS, GOOD, PHASES, contender, expected, marked, race  # noqa: E402

from attnlab.contract.result import Result  # noqa: E402
from attnlab.contract.workload import Workload  # noqa: E402
from attnlab.measuring import protocol  # noqa: E402
from attnlab.measuring.conductor import Conductor  # noqa: E402
from attnlab.measuring.contender import Contender, parse_all  # noqa: E402
from attnlab.measuring.limits import Limits  # noqa: E402
from attnlab.program.environment import environment  # noqa: E402
from attnlab.program.lock import held  # noqa: E402
from attnlab.program.plan import Plan, read_plan  # noqa: E402
from attnlab.program.store import read_run, require_run  # noqa: E402

Figures = dict[str, Any]
#: results of the run that is gone on with
RESULTS = 10_000
STORE, PAGE = HOME / "robustness.json", HOME.parent / "docs" / "robustness.md"


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


# -- faults ---------------------------------------------------------------------------------------------------------


def matrix(asked: argparse.Namespace) -> Figures:
    """Every fault in every phase, beside two good backends."""
    rows: dict[str, dict[str, str]] = {fault: {} for fault in FAULTS}
    harmed, left = [], 0
    for phase in PHASES:
        say(f"faults: {phase}")
        trial = race(phase, list(FAULTS))
        left += trial.left
        harmed += [f"{phase}: {name}" for name in GOOD if trial.results[name].outcome != "measured"]
        for fault in FAULTS:
            result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
            right = result.outcome == outcome and words in (result.reason or "")
            noted = " (noted)" if outcome == "measured" and words else ""
            rows[fault][phase] = f"{result.outcome}{noted}" if right else f"**{result.outcome}**"
    return {"rows": rows, "harmed": harmed, "left": left, "deadline_s": DEADLINE}


# -- kills ----------------------------------------------------------------------------------------------------------

SOAK = ["--backends", "numpy_vectorized,numpy_blocked", "--lengths", "8,16,32,64", "--heads", "1,2,4"]
SOAK += ["--seconds", "0.3", "--experiments", "none"]


def soak(asked: argparse.Namespace) -> Figures:
    """Kill the conductor, or one of its workers, at a random moment; go on; until so many kills are counted."""
    generator, kills = random.Random(0), Counter[str]()
    figures: Figures = {"runs": 0, "lost": 0, "doubled": 0, "different": 0, "broken": 0, "left": 0}
    with tempfile.TemporaryDirectory(prefix="attnlab-soak-") as folder:
        place = Path(folder)
        _finish(place / "whole", lambda: None)
        whole = _cells(place / "whole")
        while sum(kills.values()) < asked.kills:
            run = place / f"run{figures['runs']}"
            _finish(run, lambda: _strike(generator, kills, asked.kills))
            figures["runs"] += 1
            found = _cells(run)
            figures["lost"] += len(whole.keys() - found.keys())
            figures["doubled"] += sum(count > 1 for count in found.values())
            # a worker that is killed is an outcome, and no fault of the store
            figures["different"] += len(found.keys() - whole.keys())
            figures["broken"] += subprocess.call([*_ATTNLAB, "doctor", str(run)], stdout=subprocess.DEVNULL)
            figures["left"] += marked()
            say(f"soak: {sum(kills.values())} kills in {figures['runs']} runs")
    return {**figures, "kills": dict(kills), "cells": len(whole)}


_ATTNLAB = [sys.executable, "-P", "-m", "attnlab"]


def _finish(run: Path, strike: Callable[[], Callable[[int], bool] | None]) -> None:
    """Start the run, go on with it after every kill of its conductor, until it is complete."""
    for _ in range(1000):
        words = ["--resume", str(run)] if (run / "run.json").exists() else [*SOAK, "--out", str(run)]
        process = subprocess.Popen(
            [*_ATTNLAB, "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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


def _cells(run: Path) -> Counter[tuple[str, str]]:
    return Counter((one.workload.label, one.contender) for one in read_run(run).results)


# -- malformed input ------------------------------------------------------------------------------------------------


def fuzz(asked: argparse.Namespace) -> Figures:
    """Lines and frames that are damaged in every way; each is taken or refused in a line, at once."""
    generator, told = random.Random(1), Counter[str]()
    before, worst = psutil.Process().memory_info().rss, 0.0
    for read, good in _readers():
        for _ in range(asked.lines // 6):
            started = time.monotonic()
            try:
                read(_damaged(generator, good))
                told["taken"] += 1
            except (ValueError, protocol.Garbled, protocol.Closed):
                told["refused"] += 1
            except Exception as fault:  # the figure that must be 0
                told[f"crash {type(fault).__name__}"] += 1
                say(f"fuzz: {type(fault).__name__}: {str(fault)[:200]}")
            worst = max(worst, time.monotonic() - started)
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    return {"told": dict(told), "longest_s": round(worst, 3), "grown_mib": round(grown, 1)}


def _readers() -> Iterator[tuple[Callable[[bytes], Any], bytes]]:
    """What reads data from outside, and something good for it to read."""
    workload = Workload(heads=2, queries=8, keys=8, head_dim=4, causal=True, window=(3, 0))
    reference = (HOME.parent / "reports" / "reference" / "results.jsonl").read_bytes().splitlines()[0]
    run = (HOME.parent / "reports" / "reference" / "run.json").read_bytes()
    plan = b'lengths = [64, 128]\nheads = [1, 4]\nbackends = ["torch_sdpa[threads=1]"]\nwindow = [3, 0]\n'
    header = json.dumps({"number": 1, "arrays": [{"dtype": "float32", "shape": [2, 2]}]}).encode()
    frame = len(header).to_bytes(4, "big") + (16).to_bytes(4, "big") + header + bytes(16)
    yield lambda data: Result.from_json(data.decode(errors="replace")), reference
    yield lambda data: Workload.from_dict(_object(data)), json.dumps(workload.to_dict()).encode()
    yield _read_run, run
    yield _read_plan, plan
    yield (
        lambda data: Contender.parse(data.decode(errors="replace")),
        b"torch_sdpa[threads=1,OMP_PROC_BIND=true]",
    )
    yield _read_frame, frame


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode(errors="replace"))
    except RecursionError:  # this script's own reading, not attnlab's
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _read_run(data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as folder:
        (Path(folder) / "run.json").write_bytes(data)
        return read_run(folder)


def _read_plan(data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as folder:
        file = Path(folder) / "plan.toml"
        file.write_bytes(data)
        return Plan.grid(**read_plan(file))


def _read_frame(data: bytes) -> Any:
    reading, writing = os.pipe()
    try:
        os.write(writing, data[:60_000])
        os.close(writing)
        return protocol.receive(reading, time.monotonic() + 5)
    finally:
        os.close(reading)


_PIECES = [
    b"null",
    b"{}",
    b"[]",
    b"1e999",
    b"-1",
    b"\xff\xfe",
    b"\x00",
    b'"',
    b"NaN",
    b"[" * 5000,
    b"9" * 5000,
]
_PIECES += [
    b'{"a":' * 3000,
    "\u202e<script>".encode(),
    b"../../../etc/passwd",
    b"true",
    b"\n",
    b",",
    b"x" * 10_000,
]


def _damaged(generator: random.Random, good: bytes) -> bytes:
    """`good` with one to four changes: bits, cuts, doubled parts, other pieces in the place of values."""
    data = bytearray(good)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(data) + 1)
        until = min(len(data), at + generator.randint(0, 40))
        kind = generator.randrange(6)
        if kind == 0 and data:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del data[at:until]
        elif kind == 2:
            data[at:at] = data[at:until] * generator.randint(1, 50)
        elif kind == 3:
            data[at:until] = generator.choice(_PIECES)
        elif kind == 4:
            del data[at:]
        else:
            values = list(re.finditer(rb"-?\d+\.?\d*|\"[^\"]*\"|true|false|null", bytes(data)))
            if values:
                one = generator.choice(values)
                data[one.start() : one.end()] = generator.choice(_PIECES)
    return bytes(data)


# -- thousands of workloads -----------------------------------------------------------------------------------------


def leaks(asked: argparse.Namespace) -> Figures:
    """One conductor over so many workloads: its memory, open files and processes at the start and in the end."""
    limits = Limits(
        processes=1, most_processes=1, min_rounds=2, max_rounds=2, workload_seconds=0.01, turn_seconds=1e-4
    )
    names, own, figures = ["numpy_vectorized", "numpy_blocked"], psutil.Process(), []
    shapes = [(heads, length) for heads in (1, 2, 4) for length in range(4, 36)]
    started = time.monotonic()
    with Conductor(parse_all(names), limits=limits) as conductor:
        for number in range(asked.workloads):
            heads, length = shapes[number % len(shapes)]
            conductor.race(Workload(heads=heads, queries=length, keys=length, head_dim=8, seed=number))
            if number + 1 in (asked.workloads // 10, asked.workloads):
                children = len(own.children(recursive=True))
                figures.append([own.memory_info().rss / 2**20, own.num_fds(), children])
                say(f"leaks: {number + 1} workloads, {figures[-1]}")
    return {
        "workloads": asked.workloads,
        "seconds": round(time.monotonic() - started),
        "early": figures[0],
        "late": figures[1],
    }


# -- what keeping costs ---------------------------------------------------------------------------------------------


def store(asked: argparse.Namespace) -> Figures:
    """What going on with 10,000 results costs before the first race, and what keeping costs of a run's time.

    Both with the results of the reference run, told apart by the seed of their workloads.
    """
    reference = read_run(HOME.parent / "reports" / "reference")
    by_workload: dict[Workload, list[Result]] = {}
    for one in reference.results:
        by_workload.setdefault(one.workload, []).append(one)
    workloads, kept = list(by_workload), 0
    with tempfile.TemporaryDirectory(prefix="attnlab-store-") as folder:
        planned = [
            one.with_(seed=seed)
            for seed in range(-(-RESULTS // len(reference.results)) + 1)
            for one in workloads
        ]
        plan = replace(reference.plan, workloads=tuple(planned))
        run = replace(reference, folder=Path(folder), plan=plan, results=[], findings=[], complete=False)
        run.save()
        spent: list[float] = []
        for one in planned:
            if kept >= RESULTS:
                break
            results = [replace(old, workload=one) for old in by_workload[one.with_(seed=workloads[0].seed)]]
            started = time.perf_counter()
            run.append(results)
            spent.append(time.perf_counter() - started)
            kept += len(results)
        started = time.perf_counter()
        run.save()
        saving = time.perf_counter() - started
        started = time.perf_counter()
        with held(require_run(folder)):
            again = read_run(folder)
            left = len(again.left())
            assert again.whole() == len(again.results) == kept
        reading = time.perf_counter() - started
    measuring = sum(reference.account.values())
    costs = sum(spent) / len(spent) * len(workloads) + 4 * saving
    return {
        "results": kept,
        "left": left,
        "resume_s": round(reading, 2),
        "share": costs / measuring,
        "append_ms": 1e3 * sum(spent) / len(spent),
        "measuring_s": round(measuring),
    }


# -- the page -------------------------------------------------------------------------------------------------------


def page(store: Figures) -> str:
    """All that is stored, in words and tables."""
    where = environment()
    parts = [
        "# What survives",
        f"{where['cpu']}, {where['cores']['logical']} cores, {where['python']}. Made by `python "
        "benchmarks/robustness.py`; "
        "`tests/robustness` holds the same faults as tests.",
    ]
    for name, told in (
        ("matrix", _matrix_page),
        ("soak", _soak_page),
        ("fuzz", _fuzz_page),
        ("leaks", _leaks_page),
        ("store", _store_page),
    ):
        if name in store:
            parts += [*told(store[name]), f"Measured {store[name]['at']}."]
    return "\n\n".join(parts) + "\n"


def _matrix_page(found: Figures) -> Iterator[str]:
    cells = [cell for row in found["rows"].values() for cell in row.values()]
    wrong = sum("**" in cell for cell in cells)
    yield "## A worker that fails, in every phase"
    yield (
        f"{len(cells)} cells, {len(cells) - wrong} with the outcome that is expected. Each phase is one "
        "race of all faults "
        f"beside two good backends, whose results were whole in {'all' if not found['harmed'] else 'not all'} of them; "
        f"{found['left']} processes were left. A fault while memory is measured leaves the speed, with a "
        "note. Deadline "
        f"{found['deadline_s']:g} s."
    )
    lines = [f"| fault | {' | '.join(PHASES)} |", "|---" * (len(PHASES) + 1) + "|"]
    for fault, row in found["rows"].items():
        lines.append(f"| {fault.replace('_', ' ')} | {' | '.join(row[phase] for phase in PHASES)} |")
    yield "\n".join(lines)


def _soak_page(found: Figures) -> Iterator[str]:
    kills = ", ".join(f"{count} of a {who}" for who, count in sorted(found["kills"].items()))
    yield "## Killed at random, and gone on with"
    yield (
        f"{sum(found['kills'].values())} times SIGKILL ({kills}) at random moments of {found['runs']} runs of "
        f"{found['cells']} results each, gone on with by `attnlab run --resume` until complete. Against an "
        "unbroken run: "
        f"{found['lost']} results lost, {found['doubled']} doubled, {found['different']} that it does not have; "
        f"{found['broken']} runs in which `attnlab doctor` found something broken; {found['left']} processes left."
    )


def _fuzz_page(found: Figures) -> Iterator[str]:
    told = found["told"]
    crashes = sum(count for name, count in told.items() if name.startswith("crash"))
    yield "## Malformed input"
    yield (
        f"{sum(told.values())} damaged result lines, workloads, run files, plan files, contenders and frames: "
        f"{told.get('taken', 0)} were still readable, {told.get('refused', 0)} were refused in a line, "
        f"{crashes} crashed. The "
        f"longest took {found['longest_s']:g} s; memory grew by {found['grown_mib']:g} MiB."
    )


def _leaks_page(found: Figures) -> Iterator[str]:
    (memory, files, children), (late_memory, late_files, late_children) = found["early"], found["late"]
    yield "## Many workloads in one run"
    yield (
        f"After {found['workloads'] // 10} of {found['workloads']} workloads the conductor held "
        f"{memory:.1f} MiB, {files} open "
        f"files and {children} processes; after all of them {late_memory:.1f} MiB, {late_files} and {late_children} "
        f"({found['seconds']} s)."
    )


def _store_page(found: Figures) -> Iterator[str]:
    yield "## What keeping costs"
    yield (
        f"A run with {found['results']:,} results is locked, read, checked and told what is left of it in "
        f"{found['resume_s']:g} s: so much later `--resume` starts. Appending the results of one workload, flushed to "
        f"the disk, takes {found['append_ms']:.1f} ms; with the files that are replaced at the stages of a run that is "
        f"{found['share']:.2%} of the {found['measuring_s']} s of the reference run."
    )


PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "matrix": matrix,
    "soak": soak,
    "fuzz": fuzz,
    "leaks": leaks,
    "store": store,
}


def main() -> None:
    """Measure the parts that are named, all by default, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lines", type=int, default=12_000)
    parser.add_argument("--workloads", type=int, default=2_000)
    asked = parser.parse_args()
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for name in asked.parts or PARTS:
        found = PARTS[name](asked)
        figures[name] = {**found, "at": datetime.now(UTC).strftime("%Y-%m-%d")}
        STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
