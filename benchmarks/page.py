"""How long a large run takes to report and to page, and how long its page takes in a browser.

``python benchmarks page [--small] [--out FILE.md]``, on a machine that does nothing else. Runs are made up from cost
models (``tests/report/synthetic.py``), with 1,000 results, with 100,000 timed rounds, with 10,000 results and with
100,000 measurements and more: three a result, as a real run has, and every column that it notes beside a round.
`--small` leaves the last three out, which take minutes. ``attnlab report``, ``attnlab explore`` and the two in one,
``attnlab report --page``, are each started some times, one after the other, as processes of their own; the median
time is told, and the most memory that any held, together with the processes that it had started. The browser is a
fresh Chromium without a window for each of the openings; interactive is the moment, counted from the start of the
navigation, at which the page has drawn its first view and listens. The median is told.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import ATTNLAB, HOME, REPOSITORY, command_line, publish, say, table

from attnlab.report.explore_page import PAGE
from attnlab.runs.store import read_run

sys.path[:0] = [str(REPOSITORY / "tests" / name) for name in ("report", "page")]

from opened_page import find_browser  # noqa: E402
from synthetic import COSTS, synthetic  # noqa: E402

CONTENDERS = tuple(name for name in COSTS if name != "naive_loop")
OPENINGS, STARTS = 5, 3
#: what is to be reached: seconds of both in one, bytes of memory, bytes of the page, seconds until it is interactive
MOST = (20, 2**30, 5_000_000, 1.0)
DTYPES = ("float32", "bfloat16", "float16", "float64")
#: what is made up: by name the lengths, head counts, number formats and rounds of each of six contenders
CASES = {
    "1,000 results": (8, 21, DTYPES[:1], 20),
    "100,000 rounds": (8, 21, DTYPES[:1], 100),
    "10,000 results": (20, 21, DTYPES, 20),
    "100,000 measurements": (40, 35, DTYPES, 10),
    "150,000 measurements": (40, 52, DTYPES, 10),
}
HEAD = ("run", "results", "measurements", "rounds", "`report`", "`explore`", "`report --page`")
HEAD += ("peak memory", "size of the page", "interactive")


def timed(*command: str) -> tuple[float, int]:
    """Seconds and peak bytes of ``attnlab COMMAND`` and what it starts. Raises RuntimeError where it fails."""
    started, peak = time.monotonic(), 0
    child = psutil.Popen([*ATTNLAB, *command], stdout=subprocess.DEVNULL)
    while child.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            # until it runs its own command, a process that was started shares all memory of who started it
            started_by_it = [one for one in child.children() if one.cmdline() != child.cmdline()]
            peak = max(peak, sum(one.memory_info().rss for one in (child, *started_by_it)))
        time.sleep(0.05)
    if child.returncode:
        raise RuntimeError(f"attnlab {' '.join(command)} ended with status {child.returncode}")
    return time.monotonic() - started, peak


def opened(file: Path) -> float:
    """Seconds until the page is interactive, the median of some openings; nan without a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        browser = find_browser(tool)
        seconds = []
        for _ in range(OPENINGS if browser else 0):
            running = tool.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            shown = running.new_page(viewport={"width": 1280, "height": 800})
            shown.goto(file.as_uri())
            shown.wait_for_selector("html[data-ready]")
            seconds.append(float(shown.evaluate("document.documentElement.dataset.ready")) / 1000)
            running.close()
    return statistics.median(seconds) if seconds else math.nan


def row(name: str) -> list[str]:
    """A row of the table: what the run holds, and what each step took, in bold what misses its goal."""
    lengths, heads, dtypes, rounds = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        synthetic(
            folder,
            costs={one: COSTS[one] for one in CONTENDERS},
            contenders=CONTENDERS,
            lengths=tuple(64 * one for one in range(1, lengths + 1)),
            heads=tuple(range(1, heads + 1)),
            rounds=rounds,
            variants=tuple({"dtype": one} for one in dtypes),
            whole=True,
        )
        results = read_run(folder).results
        counts = [len(results), sum(len(one.measurements) for one in results)]
        counts.append(sum(len(one.latency.samples) for one in results if one.latency))
        commands = (("report",), ("explore", "--no-open"), ("report", "--page"))
        every = [[timed(*one, str(folder)) for one in commands] for _ in range(STARTS)]
        report, explore, both = (
            statistics.median(one for one, _ in each) for each in zip(*every, strict=True)
        )
        memory = max(peak for turn in every for _, peak in turn)
        size, ready = (folder / PAGE).stat().st_size, opened(folder / PAGE)
    found = (both, memory, size, ready)
    texts = (f"{both:.1f} s", f"{memory / 2**20:.0f} MiB", f"{size / 1e6:.2f} MB", f"{ready:.2f} s")
    reached = (t if one < most else f"**{t}**" for t, one, most in zip(texts, found, MOST, strict=True))
    return [name, *(f"{one:,}" for one in counts), f"{report:.1f} s", f"{explore:.1f} s", *reached]


def main() -> None:
    """Make up the runs, time each step, and write the page."""
    parser = command_line(__doc__, out=HOME / "page.md")
    parser.add_argument("--small", action="store_true", help="leave out 10,000 results and more")
    chosen, rows = parser.parse_args(), []
    for name in list(CASES)[:2] if chosen.small else CASES:
        rows.append(row(name))
        say(" | ".join(rows[-1]))
    said = (
        "To be reached for 100,000 measurements: report and page in 20 s and 1 GiB; a page of at most 5 MB, "
        "interactive within 1 s for a run of 1,000 results. What misses it stands in bold. Times are medians of "
        f"{STARTS} starts."
    )
    title = "What a large run takes to report and to explore"
    publish(title, "page", said, table(HEAD, rows), out=chosen.out)
