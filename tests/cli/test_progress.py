"""Progress of a measurement: a bar in a terminal, plain lines elsewhere, and foreign text made safe."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from synthetic import synthetic

from attnlab.cli.progress import TimeLeft, progress
from attnlab.race.instruments import Notice

#: the visits of a run of 18 workloads on two cores, lap by lap: workload (heads, length) and seconds
VISITS = json.loads(Path(__file__).with_name("visits.json").read_text(encoding="utf-8"))


def shown(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, terminal: bool, quiet: bool = False, **variables: str
) -> str:
    """The text on standard error at the first visit of the second lap."""
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", file)
    for name in ("CI", "TERM"):
        monkeypatch.setenv(name, variables.get(name, ""))
    monkeypatch.setenv("COLUMNS", "120")
    with progress(quiet=quiet) as found:
        folder.mkdir(exist_ok=True)
        found.begins(synthetic(folder, lengths=(64,), heads=(1,), contenders=("torch_eager",)))
        found.stage("b1 h8 n512", done=0, total=2)
        found.detail("b1 h8 n512: \x1b[31mround 3\x1b[0m, [bold]visit 1\nand more")
        found.stage("b1 h8 n512", done=1, total=2)
        found.detail(Notice("another program is here"))
    return file.getvalue()


def test_a_terminal_shows_the_workload_its_lap_and_the_time_left(monkeypatch, tmp_path) -> None:
    text = shown(monkeypatch, tmp_path, terminal=True, TERM="xterm")
    assert all(one in text for one in ("b1 h8 n512", "1/2", "lap 2", "0:00 left", "another program is here"))
    assert "round 3, [bold]visit 1 and more" in text and "\x1b[31mround" not in text


def test_the_time_left_is_right_within_30_percent_from_the_second_lap_on() -> None:
    left, now = TimeLeft(workloads=18), 0.0
    told = []
    for done, (text, took) in enumerate(VISITS):
        told.append((left.begins(text, done=done, total=len(VISITS), now=now), now))
        now += took
    for estimate, at in told[18:]:
        assert estimate == pytest.approx(now - at, rel=0.3)
    assert told[0][0] is None and left.begins("ceilings", done=54, total=54, now=now) is None


@pytest.mark.parametrize("variables", [{}, {"CI": "true", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_a_log_has_a_line_a_stage(variables, monkeypatch, tmp_path) -> None:
    lines = shown(monkeypatch, tmp_path, terminal=bool(variables), **variables).splitlines()
    told = ["[0/2] b1 h8 n512", "[1/2] b1 h8 n512", "another program is here"]
    assert [line.split(" (")[0] for line in lines] == told
    assert shown(monkeypatch, tmp_path / "quiet", terminal=True, quiet=True) == ""
