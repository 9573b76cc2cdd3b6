"""How far a run has come: a live line with the time left in a terminal, plain lines elsewhere.

All of it goes to standard error, so that standard output holds the answer alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnlab.program.execute import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from attnlab.sweep.progress import Status


class _Lines(Progress):
    """A line a stage, for logs."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def stage(self, text: str, *, done: int, total: int) -> None:
        elapsed = time.monotonic() - self._started
        left = f", about {elapsed / done * (total - done):.0f} s left" if 0 < done < total else ""
        print(f"[{done}/{total}] {text} ({elapsed:.0f} s so far{left})", file=sys.stderr, flush=True)


class _Bar(Progress):
    """A bar with the time left, and what is being done now."""

    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def stage(self, text: str, *, done: int, total: int) -> None:
        self._bar.update(self._task, description=text, completed=done, total=total, detail="")

    def detail(self, text: str) -> None:
        # a redraw takes CPU: `refresh` only here, between turns, and no refresh thread of its own
        self._bar.update(self._task, detail=text, refresh=True)


@contextmanager
def live_progress() -> Iterator[Progress]:
    """Progress of a run, as fits standard error."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        yield _Bar(bar, bar.add_task("", total=1, detail=""))


@contextmanager
def note(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows one passing line in a terminal; nothing elsewhere, or with `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    width = 78

    def show(text: str) -> None:
        print(f"\r{text[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r" + " " * width + "\r", end="", file=sys.stderr, flush=True)


@contextmanager
def sweep_progress(every: float) -> Iterator[Callable[[Status], None]]:
    """A function that is told how far a sweep is: one live line in a terminal, a line now and then elsewhere."""
    from attnlab.sweep.following import summary

    told = -every

    def line(found: Status) -> None:
        nonlocal told
        if time.monotonic() - told >= every or found.over:
            told = time.monotonic()
            print(summary(found), file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield line
        return
    with note() as show:
        yield lambda found: show(summary(found))
