"""How long a large run takes to report and to page, and how long its page takes in a browser.

``python benchmarks/page.py [--small] [--out FILE.md]``, on a machine that does nothing else. Runs are made up from
cost models (``tests/report/synthetic.py``), with 1,000 results, with 100,000 timed rounds, with 10,000 results and
with 100,000 measurements and more: three a result, as a real run has, and every column that it notes beside a round.
`--small` leaves the last three out, which take minutes. ``attnlab report``, ``attnlab explore`` and the two in one,
``attnlab report --page``, are each started some times, one after the other, as processes of their own; the median
time is told, and the most memory that any held, together with the processes that it had started. The browser is a
fresh Chromium without a window for each of the openings; interactive is the moment, counted from the start of the
navigation, at which the page has drawn its first view and listens. The median is told.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HOME = Path(__file__).parent
sys.path[:0] = [str(HOME.parent / "tests" / name) for name in ("report", "page")]

import psutil  # noqa: E402
from opened_page import find_browser  # noqa: E402
from synthetic import COSTS, synthetic  # noqa: E402

from attnlab.environment import environment  # noqa: E402
from attnlab.report.explore_page import PAGE  # noqa: E402
from attnlab.runs.store import Run, read_run  # noqa: E402

CONTENDERS = tuple(name for name in COSTS if name != "naive_loop")
OPENINGS, STARTS = 5, 3
#: what is to be reached: seconds of both in one, bytes of memory, bytes of the page, seconds until it is interactive
MOST_SECONDS, MOST_MEMORY, MOST_PAGE, MOST_OPENING = 20, 2**30, 5_000_000, 1.0


@dataclass(frozen=True)
class Case:
    """A run to make up: lengths, head counts, number formats and rounds of each of six contenders."""

    name: str
    lengths: int
    heads: int
    dtypes: tuple[str, ...]
    rounds: int

    def made(self, folder: Path) -> Run:
        """The run, stored in `folder`."""
        return synthetic(
            folder,
            costs={name: COSTS[name] for name in CONTENDERS},
            contenders=CONTENDERS,
            baseline="torch_eager",
            lengths=tuple(64 * one for one in range(1, self.lengths + 1)),
            heads=tuple(range(1, self.heads + 1)),
            rounds=self.rounds,
            variants=tuple({"dtype": one} for one in self.dtypes),
            whole=True,
        )


CASES = (
    Case("1,000 results", 8, 21, ("float32",), 20),
    Case("100,000 rounds", 8, 21, ("float32",), 100),
    Case("10,000 results", 20, 21, ("float32", "bfloat16", "float16", "float64"), 20),
    Case("100,000 measurements", 40, 35, ("float32", "bfloat16", "float16", "float64"), 10),
    Case("150,000 measurements", 40, 52, ("float32", "bfloat16", "float16", "float64"), 10),
)


def timed(*command: str) -> tuple[float, int]:
    """Seconds and peak bytes of ``attnlab COMMAND`` and what it starts. Raises RuntimeError where it fails."""
    started = time.monotonic()
    child = psutil.Popen([sys.executable, "-m", "attnlab", *command], stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            # until it runs its own command, a process that was started shares all memory of who started it
            started_by_it = [one for one in child.children() if one.cmdline() != child.cmdline()]
            peak = max(peak, sum(one.memory_info().rss for one in (child, *started_by_it)))
        time.sleep(0.05)
    if child.returncode:
        raise RuntimeError(f"attnlab {' '.join(command)} ended with status {child.returncode}")
    return time.monotonic() - started, peak


def of_all(commands: Sequence[Sequence[str]]) -> tuple[list[float], int]:
    """The median seconds of each command over some starts, turn by turn, and the most bytes that any of them took."""
    every = [[timed(*command) for command in commands] for _ in range(STARTS)]
    seconds = [statistics.median(one for one, _ in column) for column in zip(*every, strict=True)]
    return seconds, max(peak for turn in every for _, peak in turn)


def opened(page: Path) -> float | None:
    """Seconds until the page is interactive, the median of some openings; None without a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as tool:
        browser = find_browser(tool)
        if browser is None:
            return None
        seconds = []
        for _ in range(OPENINGS):
            running = tool.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            shown = running.new_page(viewport={"width": 1280, "height": 800})
            shown.goto(page.as_uri())
            shown.wait_for_selector("html[data-ready]")
            seconds.append(float(shown.evaluate("document.documentElement.dataset.ready")) / 1000)
            running.close()
    return statistics.median(seconds)


def row(case: Case) -> list[str]:
    """A row of the table: what the run holds, and what each step took."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        case.made(folder)
        run = read_run(folder)
        results, measurements = len(run.results), sum(len(one.measurements) for one in run.results)
        rounds = sum(len(one.latency.samples) for one in run.results if one.latency)
        commands = (("report",), ("explore", "--no-open"), ("report", "--page"))
        (report, explore, both), memory = of_all([(*one, str(folder)) for one in commands])
        size, ready = (folder / PAGE).stat().st_size, opened(folder / PAGE)
    return [
        case.name,
        *(f"{count:,}" for count in (results, measurements, rounds)),
        f"{report:.1f} s",
        f"{explore:.1f} s",
        _held(f"{both:.1f} s", both < MOST_SECONDS),
        _held(f"{memory / 2**20:.0f} MiB", memory < MOST_MEMORY),
        _held(f"{size / 1e6:.2f} MB", size < MOST_PAGE),
        "no browser here" if ready is None else _held(f"{ready:.2f} s", ready < MOST_OPENING),
    ]


def _held(text: str, held: bool) -> str:
    return text if held else f"**{text}**"


def table(rows: Sequence[Sequence[str]]) -> str:
    """The page: where it was measured, and a row a case."""
    known = environment()
    counted, reached = (
        ("results", "measurements", "rounds"),
        ("peak memory", "size of the page", "interactive"),
    )
    heads = ["run", *counted, "`report`", "`explore`", "`report --page`", *reached]
    lines = [
        "# What a large run takes to report and to explore",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {known.get('cpu')}, {known['cores']['logical']} cores, {known.get('python')}. "
        "Made by `python benchmarks/page.py`.",
        "",
        f"To be reached for 100,000 measurements: report and page in {MOST_SECONDS} s and 1 GiB; a page of at most "
        f"5 MB, interactive within {MOST_OPENING:g} s for a run of 1,000 results. What misses it stands in bold. Times "
        f"are medians of {STARTS} starts.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{' --- |' * len(heads)}",
        *(f"| {' | '.join(one)} |" for one in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make up the runs, time each step, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="leave out 10,000 results and more")
    parser.add_argument("--out", type=Path, default=HOME / "page.md")
    asked = parser.parse_args()
    rows = []
    for case in CASES[:2] if asked.small else CASES:
        rows.append(row(case))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    asked.out.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
