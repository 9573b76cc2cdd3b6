"""What is printed fits a terminal: no name and no number is broken, and little is said twice."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typed import status

from attnlab.cli.tables import Fitted, comparison_table, costs_tables, presets_table
from attnlab.race.compare import Comparison
from attnlab.runs.presets import presets
from attnlab.runs.store import read_run
from attnlab.stats.verdicts import verdicts_against
from attnlab.text import wrapped
from attnlab.workload.mask_kinds import Given, Part

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"
CELLS = read_run(REFERENCE).judged().cells
PARTS = {name: one.parts for name, one in presets().items()}


RACED = tuple(CELLS[-1].answers[one] for one in ("torch_sdpa", "torch_eager", "numpy_vectorized", "xformers"))
COMPARED = Comparison(CELLS[-1].workload, "torch_sdpa", RACED, verdicts_against(RACED, "torch_sdpa"), 5)
TABLES = {
    "comparison": [comparison_table(COMPARED), comparison_table(replace(COMPARED, results=RACED[:3]))],
    "presets": [presets_table(PARTS), *costs_tables([*chain(*PARTS.values())])],
    "long": [Fitted(["who", "time", "why"], [("a[threads=1]" * 5, "1.5 ms", "no " * 50)], prose=["why"])],
    "blocks": [Fitted(["who", *"abcd"], [["x" * 30, *(one * 20 for one in "abcd")]], spare=("d",))],
    "many": [Fitted([f"column_{at}" for at in range(30)], [[f"{at}.000 ms" for at in range(30)]])],
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", TABLES)
def test_no_name_and_no_number_is_broken(name: str, width: int) -> None:
    """Cells stand whole in one line, sentences in whole words; what is left out may be, and is named."""
    for table in TABLES[name]:
        console = Console(file=io.StringIO(), width=width)
        with console.capture() as printed:
            console.print(table)
        text = printed.get()
        assert max(map(cell_len, text.splitlines())) <= width
        left_out = text.partition("want of room: ")[2].partition(";")[0].replace("\n", " ").split(", ")
        asked: Counter[str] = Counter()
        for header, *cells in zip(table.headers, *table.rows, strict=True):
            if header not in left_out:
                asked.update(chain(*map(str.split, cells)) if header in table.prose else filter(None, cells))
        assert {*filter(None, left_out)} <= {*table.spare}
        assert [one for one, count in asked.items() if text.count(one) < count] == []


def test_what_was_left_out_stands_in_a_further_block_where_one_is_needed_anyway() -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as printed:
        console.print(TABLES["blocks"][0])
    assert "d" * 20 in printed.get() and "want of room" not in printed.get()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """The lines that a command prints on a terminal of 80 columns, none of which is longer."""

    def lines(words: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert status(*words.split()) == 0
        found = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
        assert max(map(cell_len, found)) <= 80
        return found

    return lines


def test_the_answer_is_first_and_lines_are_few(screen: Callable[[str], list[str]]) -> None:
    lines = screen(f"show {REFERENCE}")
    assert lines[0].startswith("Use torch_sdpa") and len(lines) <= 40
    assert len(screen("run --list-presets")) < sum(map(len, PARTS.values()))


@given(st.integers(30, 120))
def test_no_line_ends_within_a_figure(width: int) -> None:
    text = (
        "It takes 1.304 times as long [1.295, 1.313] (95 % interval 1.184 to 1.233), too large by 5 %. " * 3
    )
    lines = wrapped(text, width).splitlines()
    assert " ".join(lines) == text.strip() and max(map(len, lines)) <= width
    for figure in ("[1.295, 1.313]", "95 %", "1.184 to 1.233", "5 %."):
        assert "\n".join(lines).count(figure) == text.count(figure)


def test_a_pipe_has_one_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for columns, force in (("40", ""), ("300", "1")):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", force)
        assert status("show", str(REFERENCE)) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "want of room" not in shown[0]


@pytest.mark.parametrize("words", ["--help", f"show {REFERENCE}", "run --list-presets"])
def test_nobody_needs_to_read_to_the_end(words: str) -> None:
    """As ``| head`` does not: here nobody reads the pipe at all."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "attnlab", *words.split()]
    found = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_help_of_a_race_names_every_mask(screen: Callable[[str], list[str]]) -> None:
    of_masks = "\n".join(screen("compare --help-all")).partition("--mask")[2].partition("--bias")[0]
    assert all(f"{kind}(" in of_masks for kind in {*Part.kinds} - {Given.kind})
