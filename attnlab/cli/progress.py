"""Shows the progress of a measurement on standard error: a bar in a terminal, plain lines elsewhere.

The bar is drawn when the conductor reports a step, at most twice per second; every timed process is stopped then. The
bar is also drawn every 4 s, so that a terminal is never silent for long. This takes 2 ms, and a turn at that moment may
be counted as disturbed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnlab.race.instruments import Notice
from attnlab.runs.execute import Progress
from attnlab.text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from attnlab.runs.store import Run

#: least and largest number of seconds between two drawings of the bar
_BETWEEN, _SILENT = 0.5, 4.0
#: first guess of the time of a later visit to a workload, as a fraction of the time of the first visit
_GUESS = 0.6


@dataclass
class TimeLeft:
    """Estimates the remaining seconds of a run from the visits that are over.

    It assumes that the remaining visits go to the workloads with the fewest visits so far. The first visit to a
    workload takes longer than later ones. This factor is estimated from all workloads; a first guess counts as two
    visits.
    """

    #: number of workloads of the run; a first visit is assumed to take the mean of the first visits so far
    workloads: int = 0
    took: dict[str, list[float]] = field(default_factory=dict)
    _stage: tuple[str, int, float] = "", -1, 0.0

    def begins(self, text: str, *, done: int, total: int, now: float) -> float | None:
        """Call when a visit to workload `text` begins after `done` of `total`. Returns the seconds left, or None."""
        before, number, since = self._stage
        if done == number + 1 and before:
            self.took.setdefault(before, []).append(now - since)
        self._stage = text, done, now
        if not self.took or done >= total:
            return None
        usual = statistics.fmean(one[0] for one in self.took.values())
        unseen = max(0, min(self.workloads - len(self.took), total - done))
        order = sorted([*self.took.values(), *[[usual]] * unseen], key=len)
        later = sum(sum(one[1:]) for one in order) + _GUESS * 2 * usual
        factor = later / (sum(one[0] * len(one[1:]) for one in order) + 2 * usual)
        seconds = [statistics.median(one[1:]) if one[1:] else factor * one[0] for one in order]
        laps, rest = divmod(total - done - unseen, len(order))
        return unseen * usual + laps * sum(seconds) + sum(seconds[:rest])


@dataclass
class _Lines(Progress):
    """Prints a line for each stage and each notice, for logs."""

    _started: float = field(default_factory=time.monotonic)
    _told: set[str] = field(default_factory=set)

    def stage(self, text: str, *, done: int, total: int) -> None:
        seconds = time.monotonic() - self._started
        print(f"[{done}/{total}] {text} ({seconds:.0f} s so far)", file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        if isinstance(text, Notice) and text not in self._told:
            self._told.add(text)
            print(text, file=sys.stderr, flush=True)


class _Drawn(Progress):
    """Draws a bar with the workload, its lap, the time left and the current step."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._drawn, self._left, self._text = bar, -_BETWEEN, TimeLeft(), ""
        self._task = bar.add_task("measuring", total=None, lap="", count="", ends=None, now="")

    def begins(self, run: Run) -> None:
        self._left.workloads = len(run.plan.workloads)

    def stage(self, text: str, *, done: int, total: int) -> None:
        now, self._text = time.monotonic(), text
        left = self._left.begins(text, done=done, total=total, now=now)
        lap = f"lap {len(self._left.took.get(text, ())) + 1}" if self._left.workloads and done < total else ""
        told: dict[str, Any] = {"description": text, "lap": lap, "count": f"{done}/{total}"}
        told |= {"ends": left and now + left, "now": ""}
        self._bar.update(self._task, completed=done, total=total, refresh=True, **told)

    def detail(self, text: str) -> None:
        if isinstance(text, Notice):
            self._bar.console.print(text, markup=False, highlight=False)
        elif time.monotonic() - self._drawn >= _BETWEEN:
            self._bar.update(self._task, now=one_line(text.removeprefix(f"{self._text}: ")), refresh=True)
            self._drawn = time.monotonic()


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` in the form that suits standard error; it shows nothing if `quiet`."""
    terminal = sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
    if quiet or not terminal:
        yield Progress() if quiet else _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            ends = task.fields["ends"]
            seconds = max(0, round(ends - time.monotonic())) if ends else 0
            return Text(f"{seconds // 60}:{seconds % 60:02} left" if ends else "")

    shown = ("description", "fields[lap]", "fields[count]")
    text, lap, count = (TextColumn(f"{{task.{name}}}", markup=False) for name in shown)
    one_row = Column(no_wrap=True, ratio=1)
    now = TextColumn("{task.fields[now]}", style="dim", markup=False, table_column=one_row)
    columns = (text, lap, BarColumn(12), count, Left(), now)
    how: dict[str, Any] = {"refresh_per_second": 1 / _SILENT, "transient": True, "expand": True}
    with Bar(*columns, console=Console(stderr=True), **how) as bar:
        yield _Drawn(bar)
