"""How good are the instruments? The figures that attnlab promises, measured on this machine.

``python benchmarks/instruments.py [memory account scaling gate laboratory] [--out FILE.md]``, on a machine that does
nothing else. Prints a Markdown page: what was promised beside what was measured. How true the verdicts are is measured
by `benchmarks/verdicts.py` and `attnlab selftest`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from attnlab import report
from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import backends
from attnlab.environment import environment
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.runs.execute import run
from attnlab.runs.plan import Plan

LINEAR = ("numpy_blocked", "torch_sdpa")
Table = list[tuple[str, ...]]


def race(names: tuple[str, ...], workload: Workload, **options: object) -> list[Result]:
    """One race in fresh processes."""
    with Conductor(parse_all(names), **options) as conductor:  # type: ignore[arg-type]
        return conductor.race(workload)


def median(result: Result) -> float:
    """Seconds per call, or an error that says why there are none."""
    if result.latency is None:
        raise SystemExit(f"{result.contender}: {result.outcome}: {result.reason}")
    return result.latency.median


def peak(name: str, length: int) -> int:
    """Peak bytes of one call at b=1, h=8, d=64, float32, or an error that says why there is none."""
    # memory, not speed, is asked for: a call may take its time
    limits = Limits(min_rounds=1, max_rounds=1, call_seconds=20.0)
    (result,) = race((name,), Workload(queries=length, keys=length), limits=limits)
    if result.peak_bytes is None:
        raise SystemExit(f"{name} at n = {length}: {result.outcome}: {result.reason}")
    return result.peak_bytes


def memory() -> Table:
    """Peaks against what arithmetic says."""
    rows: Table = [("contender", "n", "measured", "expected", "measured / expected", "met")]
    for length in (512, 2048):
        workload = Workload(queries=length, keys=length)
        found = peak("torch_eager", length)
        expected = 2 * workload.score_bytes + workload.output_bytes
        ratio = found / expected
        rows.append(
            (
                "torch_eager",
                str(length),
                f"{found:,} B",
                f"{expected:,} B (2S + O)",
                f"{ratio:.4f}",
                yes(abs(ratio - 1) <= 0.01),
            )
        )
    for name in LINEAR:
        peaks = {length: peak(name, length) for length in (1024, 2048, 4096, 8192)}
        for length in (2048, 4096, 8192):
            growth = peaks[length] / peaks[length // 2]
            rows.append(
                (
                    name,
                    str(length),
                    f"{peaks[length]:,} B",
                    "at most 2 x the half length",
                    f"{growth:.3f} x",
                    yes(growth <= 2.05),
                )
            )
    return rows


def account() -> Table:
    """Where the time of a default run goes."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        found = run(Plan.grid(), Path(folder) / "run")
        drawing = time.monotonic()
        report.write(found)
        found.account["report"] = time.monotonic() - drawing
        total = time.monotonic() - started
    rows: Table = [("activity", "seconds", "share")]
    for activity, seconds in sorted(found.account.items(), key=lambda item: -item[1]):
        rows.append((activity, f"{seconds:.1f}", f"{seconds / total:.1%}"))
    useful = sum(found.account.get(name, 0.0) for name in ("timed", "warm-up", "memory"))
    rows.append(
        (
            "timed, warm-up or memory: at least half",
            f"{useful:.1f}",
            f"{useful / total:.1%} {yes(useful >= total / 2)}",
        )
    )
    rows.append(("in all: within 240 s", f"{total:.1f}", yes(total <= 240)))
    return rows


def scaling() -> Table:
    """A run of 16 lengths against a run of 8 in the same range."""
    lengths = [64 + 32 * step for step in range(16)]
    names = ("torch_eager", "torch_sdpa", "numpy_blocked")
    seconds = {}
    for chosen in (lengths[::2], lengths):
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            plan = Plan.grid(
                lengths=chosen,
                heads=(4,),
                contenders=names,
                experiments=("none",),
                limits=Limits(workload_seconds=2.0),
            )
            report.write(run(plan, Path(folder) / "run"))
            seconds[len(chosen)] = time.monotonic() - started
    ratio = seconds[16] / seconds[8]
    return [
        ("8 lengths", "16 lengths", "ratio (2 is right)"),
        (f"{seconds[8]:.1f} s", f"{seconds[16]:.1f} s", f"{ratio:.2f}"),
    ]


def gate() -> Table:
    """The whole command, start-up included, for each backend that runs here."""
    rows: Table = [("backend", "asked", "too slow to ask", "seconds", "under 10 s")]
    for name in backends():
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "attnlab", "check", name, "--json"], capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        (found,) = json.loads(done.stdout)
        if found["passed"] is not None:
            counts = (str(found["asked"]), str(found["left_out"]))
            rows.append((name, *counts, f"{seconds:.1f}", yes(seconds < 10)))
    return rows


def laboratory() -> Table:
    """`attnlab numerics` and `attnlab claims` as typed, with their pages."""
    rows: Table = [("command", "seconds", "goal", "met")]
    with tempfile.TemporaryDirectory() as folder:
        for command, goal in ((["numerics", "--out", f"{folder}/page"], 300.0), (["claims"], None)):
            started = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "attnlab", *command], capture_output=True, cwd=folder
            )
            seconds = time.monotonic() - started
            met = done.returncode == 0 and (goal is None or seconds < goal)
            rows.append((command[0], f"{seconds:.0f}", f"{goal:.0f}" if goal else "", yes(met)))
    return rows


def yes(held: bool) -> str:
    """The word for it."""
    return "yes" if held else "NO"


def markdown(table: Table) -> str:
    """A Markdown table, its first row the header."""
    head, *rows = table
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


SECTIONS: dict[str, tuple[str, Callable[[], Table]]] = {
    "memory": ("Peak memory against arithmetic, h=8, d=64, float32", memory),
    "account": ("The default run: where its time goes", account),
    "scaling": ("Twice the lengths, twice the time", scaling),
    "gate": ("The accuracy gate: one `attnlab check` a backend", gate),
    "laboratory": ("The laboratory", laboratory),
}


def main() -> None:
    """Run the sections asked for and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("sections", nargs="*", default=[], choices=[[], *SECTIONS])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    where = environment()
    page = [
        "# The instruments, measured",
        f"{datetime.now(UTC).date()}, {where['cpu']}, {where['cores']['logical']} cores, {where['python']}. "
        "Made by `python benchmarks/instruments.py`.",
    ]
    for name in chosen.sections or SECTIONS:
        title, measure = SECTIONS[name]
        print(f"measuring: {title}", file=sys.stderr)
        page += [f"## {title}", markdown(measure())]
        text = "\n\n".join(page) + "\n"
        if chosen.out:
            chosen.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
