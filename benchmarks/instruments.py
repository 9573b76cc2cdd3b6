"""How good are the instruments? The figures that attnlab promises, measured on this machine.

``python benchmarks instruments [memory check] [--out FILE.md]``, on a machine that does nothing else. Told is what was
promised beside what was measured. How true the verdicts are is measured by ``python benchmarks verdicts``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from common import attnlab, command_line, publish, say, table, yes

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.workload.workload import Workload

LINEAR = ("numpy_blocked", "torch_sdpa")
Rows = Iterator[tuple[object, ...]]


def peak(name: str, length: int) -> int:
    """Peak bytes of one call at b=1, h=8, d=64, float32. Exits with the reason where there is none."""
    # memory, not speed, is asked for: a call may take its time
    limits = Limits(visits=1, most_visits=1, rounds=1, call_seconds=20.0)
    with Conductor([Contender.parse(name)], limits=limits) as conductor:
        (result,) = conductor.race(Workload(queries=length, keys=length))
    if result.peak_bytes is None:
        raise SystemExit(f"{name} at n = {length}: {result.outcome}: {result.reason}")
    return result.peak_bytes


def memory() -> Rows:
    """Peak memory against arithmetic, h=8, d=64, float32"""
    yield "contender", "n", "measured", "expected", "measured / expected", "met"
    for length in (512, 2048):
        workload = Workload(queries=length, keys=length)
        found, expected = peak("torch_eager", length), 2 * workload.score_bytes + workload.output_bytes
        ratio = found / expected
        said = (f"{found:,} B", f"{expected:,} B (2S + O)", f"{ratio:.4f}", yes(abs(ratio - 1) <= 0.01))
        yield "torch_eager", length, *said
    for name in LINEAR:
        before = peak(name, 1024)
        for length in (2048, 4096, 8192):
            found = peak(name, length)
            said = (f"{found:,} B", "at most 2 x the half length", f"{found / before:.3f} x")
            yield name, length, *said, yes(found <= 2.05 * before)
            before = found


def check() -> Rows:
    """Is it right? One `attnlab check` a backend"""
    yield "backend", "asked", "too slow to ask", "seconds", "under 10 s"
    for name in backends():
        seconds, done = attnlab("check", name, "--json")
        (found,) = json.loads(done.stdout)
        if found["passed"] is not None:
            counts = (sum(one[what] for one in found["formats"].values()) for what in ("asked", "left_out"))
            yield name, *counts, f"{seconds:.1f}", yes(seconds < 10)


ALL = {one.__name__: one for one in (memory, check)}


def main() -> None:
    """Run the sections asked for and make the page."""
    parser = command_line(__doc__)
    parser.add_argument("sections", nargs="*", default=list(ALL), choices=ALL)
    chosen, parts = parser.parse_args(), []
    for name in chosen.sections:
        title = str(ALL[name].__doc__)
        say(f"measuring: {title}")
        head, *rows = ALL[name]()
        parts += [f"## {title}", table(head, rows)]
    publish("The instruments, measured", "instruments", *parts, out=chosen.out)
