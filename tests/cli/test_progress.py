"""How far a measurement is: a bar in a terminal, plain lines elsewhere, and text from outside made safe."""

from __future__ import annotations

import io
import sys

import pytest

from attnlab.cli.progress import progress
from attnlab.race.instruments import Notice


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, quiet: bool = False, **variables: str) -> str:
    """What stands on standard error after two stages of which one is done."""
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", file)
    for name in ("CI", "TERM"):
        monkeypatch.setenv(name, variables.get(name, ""))
    monkeypatch.setenv("COLUMNS", "120")
    with progress(quiet=quiet) as found:
        found.stage("starting", done=0, total=2)
        found.detail("\x1b[31mround 3\x1b[0m, [bold]process 1\nand more")
        found.stage("b1 h8 n512", done=1, total=2)
        found.detail(Notice("another program is here"))
    return file.getvalue()


def test_a_terminal_shows_the_workload_and_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, TERM="xterm")
    assert "b1 h8 n512" in text and "1/2" in text and "another program is here" in text
    assert "round 3, [bold]process 1 and more" in text and "\x1b[31mround" not in text


@pytest.mark.parametrize("variables", [{}, {"CI": "true", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_a_log_has_a_line_a_stage(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, terminal=bool(variables), **variables).splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        *("[0/2] starting", "[1/2] b1 h8 n512", "another program is here")
    ]


def test_quiet_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=True, quiet=True) == ""
