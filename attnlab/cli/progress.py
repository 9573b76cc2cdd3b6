"""How far a measurement has come: a bar in a terminal, plain lines elsewhere, both on standard error.

Nothing is drawn while a turn is on the clock: no thread refreshes the bar. It is drawn when the conductor tells
something, which it does when every timed process is stopped, and at most twice a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnlab.race.instruments import Notice
from attnlab.runs.execute import Progress
from attnlab.text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

#: seconds between two drawings
_BETWEEN = 0.5


class _Lines(Progress):
    """A line for each stage, and each notice, for logs."""

    def __init__(self) -> None:
        self._started, self._told = time.monotonic(), set[str]()

    def stage(self, text: str, *, done: int, total: int) -> None:
        seconds = time.monotonic() - self._started
        print(f"[{done}/{total}] {text} ({seconds:.0f} s so far)", file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        if isinstance(text, Notice) and text not in self._told:
            self._told.add(text)
            print(text, file=sys.stderr, flush=True)


class _Drawn(Progress):
    """A bar with the workload, how many are done and the time left; below it what is done now."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._drawn = bar, -_BETWEEN
        self._task = bar.add_task("starting", total=None, now="")

    def stage(self, text: str, *, done: int, total: int) -> None:
        self._bar.update(self._task, description=text, completed=done, total=total, now="", refresh=True)

    def detail(self, text: str) -> None:
        if isinstance(text, Notice):
            self._bar.console.print(text, markup=False, highlight=False)
        elif time.monotonic() - self._drawn >= _BETWEEN:
            self._bar.update(self._task, now=one_line(text), refresh=True)
            self._drawn = time.monotonic()


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Progress of a measurement, as fits standard error; none at all where it is `quiet`."""
    terminal = sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
    if quiet or not terminal:
        yield Progress() if quiet else _Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False)
    now = TextColumn(
        "{task.fields[now]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)
    )
    columns = (text, BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), now)
    # nothing refreshes by itself, and the speed counts every workload since the start
    how: dict[str, Any] = {"auto_refresh": False, "transient": True, "speed_estimate_period": float("inf")}
    with Bar(*columns, console=Console(stderr=True), expand=True, **how) as bar:
        yield _Drawn(bar)
