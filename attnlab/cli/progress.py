"""How far a run has come: a live table with the time left in a terminal, plain lines elsewhere.

All of it goes to standard error, so that standard output holds the answer alone.

Nothing is drawn while a turn is on the clock. There is no thread that refreshes, and none that waits for a key: the
table is drawn anew only when the conductor tells something, which it does between turns and workloads, when every
process that is timed is stopped; and no more than twice a second, since a terminal takes a core's time to draw.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from attnlab.race.disturbance import Notice
from attnlab.runs.execute import Progress
from attnlab.text import one_line, wrapped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from attnlab.runs.store import Run
    from attnlab.stats.analysis import Cell
    from attnlab.workload.result import Result

#: seconds between two drawings, but for those that a finished workload asks for
_BETWEEN = 0.5
#: lines of the terminal that are not rows: title, head, frame, and what is being done
_FRAME = 8


class _Timed(Progress):
    """How many workloads are done since the start, and how long the others will take. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._started = clock, clock()
        self._before: int | None = None
        self._done, self._total = 0, 0

    def stage(self, text: str, *, done: int, total: int) -> None:
        self._before = done if self._before is None else self._before
        self._done, self._total = done, total

    def times(self) -> str:
        """How long it took so far, and what is left where the others take as long as those since the start."""
        took, before = (
            self._clock() - self._started,
            self._before or 0,
        )  # of a run that is gone on with, not 0
        told = f"{_clock_text(took)} so far"
        if before < self._done < self._total:
            left = took / (self._done - before) * (self._total - self._done)
            told += f", {_clock_text(left)} left if the others take as long"
        return told


class _Lines(_Timed):
    """A line a stage, for logs."""

    def stage(self, text: str, *, done: int, total: int) -> None:
        super().stage(text, done=done, total=total)
        print(f"[{done}/{total}] {text} ({self.times()})", file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        if isinstance(text, Notice):
            print(text, file=sys.stderr, flush=True)


class LiveTable(_Timed):
    """A row a finished workload, the last ones where not all fit, and below them what is done now and the time left."""

    def __init__(self, live: Live, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._live, self._drawn = live, -_BETWEEN
        self._rows: list[Cell] = []
        self._baseline, self._margin, self._now = "", 0.0, ""

    def begins(self, run: Run) -> None:
        self._baseline, self._margin = run.baseline, run.plan.limits.noise_margin
        for _, results in groupby(run.results, key=lambda one: one.workload):
            self._add(list(results))

    def stage(self, text: str, *, done: int, total: int) -> None:
        super().stage(text, done=done, total=total)
        self._now = text
        self._draw()

    def detail(self, text: str) -> None:
        if isinstance(text, Notice):
            self._live.console.print(text, markup=False, highlight=False)
            return
        self._now = text
        if self._clock() - self._drawn >= _BETWEEN:
            self._draw()

    def finished(self, results: Sequence[Result]) -> None:
        self._add(results)
        self._draw()

    def _add(self, results: Sequence[Result]) -> None:
        from attnlab.stats.analysis import analyse

        # judged before a ceiling can take a figure back
        self._rows += analyse(results, baseline=self._baseline, margin=self._margin).cells

    def _draw(self) -> None:
        self._live.update(self.shown(self._live.console.height), refresh=True)
        self._drawn = self._clock()

    def shown(self, height: int) -> RenderableType:
        """What is drawn on a terminal of so many lines."""
        from rich.console import Group
        from rich.text import Text

        from attnlab.cli.tables import race_table, undecided

        lines: list[RenderableType] = []
        room = max(1, height - _FRAME)
        kept = self._rows[-room:]
        over = len(self._live.console.render_lines(race_table(kept))) - room  # rows may have several lines
        kept = kept[max(0, min(over, len(kept) - 1)) :]
        hidden = len(self._rows) - len(kept)
        if kept:
            lines.append(race_table(kept, f"so far (… {hidden} workloads before)" if hidden else "so far"))
        still = sum(undecided(one)[0] for one in self._rows)
        verdicts = f", {still} verdicts open" if still else ""
        told = f"{self._done} of {self._total} workloads{verdicts}, {self.times()}"
        lines.append(Text(told, no_wrap=True))
        lines.append(Text(one_line(self._now), style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _drawable() -> bool:
    """Whether standard error is a terminal that can be drawn on: no pipe, no CI log, none without moving cursors."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


@contextmanager
def live_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Progress of a run, as fits standard error; none at all where it is `quiet`."""
    if quiet or not _drawable():
        yield Progress() if quiet else _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield LiveTable(live)


@contextmanager
def note(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows one passing line in a terminal, and the first `Notice` for good; none with `quiet`."""
    width, noticed = 0 if quiet or not _drawable() else 78, quiet

    def show(text: str) -> None:
        nonlocal noticed
        if isinstance(text, Notice) and not noticed:
            noticed = True
            kept = f"\r{' ' * width}\r{wrapped(text, width)}" if width else text
            print(kept, file=sys.stderr, flush=True)
        elif width:
            print(f"\r{one_line(text)[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if width:
            print("\r" + " " * width + "\r", end="", file=sys.stderr, flush=True)
