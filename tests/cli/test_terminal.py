"""Output fits a terminal of 80 columns and has one width in a pipe; its reader may stop before the end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from typed import status

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """A function from a command to the lines that it prints on a terminal of 80 columns; none may be longer."""

    def lines(words: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert status(*words.split()) == 0
        # colours and links take no columns
        found = re.sub(r"\x1b(\[[0-9;]*m|\]8;.*?\x1b\\)", "", capsys.readouterr().out).splitlines()
        assert max(map(cell_len, found)) <= 80
        return found

    return lines


def test_the_answer_is_first_and_lines_are_few(screen: Callable[[str], list[str]]) -> None:
    lines = screen(f"show {REFERENCE}")
    assert lines[0].startswith("Use torch_sdpa: ") and len(lines) <= 48  # two screens of 24
    assert not re.search(r"\*\*|`|\|", "".join(lines))


def test_a_pipe_has_one_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for columns, force in (("40", ""), ("300", "1")):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", force)
        assert status("show", str(REFERENCE)) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_nobody_needs_to_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """``| head`` stops reading, and ``>&-`` closes the output. The exit status is still that of the command."""
    reading, writing = os.pipe()
    os.close(reading)
    unread = os.fdopen(writing, "w")
    for out, words, expected in ((unread, "check flash_attn --dtypes float32", 1), (None, "--version", 0)):
        monkeypatch.setattr(sys, "stdout", out)
        assert status(*words.split()) == expected
        sys.stdout.close()
