"""How far a run is: a live table that never disturbs a measurement, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from synthetic import synthetic

from attnlab.cli.progress import LiveTable, live_progress, note
from attnlab.race.disturbance import Notice


def test_every_workload_has_a_row_and_the_time_left_is_told(tmp_path: Path) -> None:
    found = synthetic(tmp_path, lengths=(64, 128, 256, 512), heads=(4,))
    finished = [list(one) for _, one in groupby(found.results, key=lambda one: one.workload)]
    found.results.clear()
    now = 0.0
    screen = SimpleNamespace(console=Console(), update=lambda shown, refresh: None)
    live = LiveTable(screen, lambda: now)  # type: ignore[arg-type]

    def shown() -> str:
        console = Console(file=io.StringIO(), width=160, height=40)
        with console.capture() as found:
            console.print(live.shown(40))
        return found.get()

    live.begins(found)
    live.stage("starting the contenders", done=0, total=4)
    assert "0 of 4 workloads, 0 s so far" in shown() and "left" not in shown()
    for done, results in enumerate(finished[:2]):
        now += 60
        live.finished(results)
        live.stage(f"workload {done + 2}", done=done + 1, total=4)
    live.detail("\x1b[31mround 3\x1b[0m, [bold]process 1\nand more")
    text = shown()
    assert "2 of 4 workloads" in text and "2 min 0 s so far, 2 min 0 s left if" in text
    rows = [line for line in text.splitlines() if line.startswith("h4 n")]
    assert len(rows) == 2 and all("torch_sdpa" in row for row in rows)
    assert "round 3, [bold]process 1 and more" in text and "\x1b" not in text


@pytest.mark.parametrize("variables", [{}, {"CI": "true", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_in_a_pipe_or_ci_there_are_plain_lines(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: bool(variables))
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.delenv("CI", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with live_progress() as found, note() as on_event, note(quiet=True) as silent:
        found.stage("starting", done=0, total=2)
        for told in ("round 1", Notice("others are here"), Notice("others are here still")):
            for tell in (on_event, silent):
                tell(told)
        found.detail("round 1")
        found.stage("b1 h8 n512", done=1, total=2)
        found.detail(Notice("so they are"))
    first, busy, second, still = file.getvalue().splitlines()
    assert (busy, still) == ("others are here", "so they are")
    assert first.startswith("[0/2] starting (") and second.startswith("[1/2] b1 h8 n512 (")
    assert "left" in second and "\x1b" not in file.getvalue()
