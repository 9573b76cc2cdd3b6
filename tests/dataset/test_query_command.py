"""The command `attnlab query`, and the reports of a dataset: formats, long answers, hostile text, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from asking import ask

from attnlab.__main__ import main
from attnlab.race.environment import fingerprint
from attnlab.runs.store import Run

pytest.importorskip("pyarrow", reason="pyarrow is not installed: attnlab[dataset]")
pytest.importorskip("duckdb", reason="duckdb is not installed: attnlab[dataset]")

from attnlab.runs import dataset

Made = Callable[..., Run]


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    told = capsys.readouterr()
    assert (end.value.code, told.err) == (0, "")
    return told.out


def test_the_formats_hold_the_same(two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = two
    sql = (
        "select contender, ratio, causal, date from verdicts where standing = 'slower' order by 1, 2 limit 3"
    )
    rows = json.loads(output(capsys, "query", str(path), sql, "--format", "json"))
    assert rows == [one | {"date": one["date"].isoformat()} for one in ask(path, sql)]
    lines = list(csv.DictReader(io.StringIO(output(capsys, "query", str(path), sql, "--format", "csv"))))
    assert [(one["contender"], float(one["ratio"]), one["causal"]) for one in lines] == [
        (one["contender"], one["ratio"], "") for one in rows
    ]
    for form in ("table", "md"):
        table = output(capsys, "query", str(path), sql, "--format", form)
        assert all(f"{one['ratio']:.6g}" in table for one in rows)
    first = [line.split("|")[1].strip() for line in table.splitlines()]
    assert [first[0], *first[2:]] == ["contender", *(one["contender"] for one in rows)]


def test_a_table_for_a_person_ends_where_nobody_reads_on(
    two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]
) -> None:
    """At a thousand rows, and some letters of a cell, and says so; CSV and JSON are whole."""
    sql = "select range as number, repeat('x', 5000) as long from range(1001)"
    for form, whole in (("table", False), ("md", False), ("csv", True), ("json", True)):
        with pytest.raises(SystemExit):
            main(["query", str(two[0]), sql, "--format", form])
        told = capsys.readouterr()
        assert ("x" * 5000 in told.out, "1000" in told.out) == (whole, whole)
        assert "999" in told.out
        said = "attnlab: the first 1000 rows; --format csv and --format json print all\n"
        assert told.err == ("" if whole else said)
    assert output(capsys, "query", str(two[0]), f"{sql} where false", "--format", "md") == (
        "| number | long |\n|:--|:--|\n"
    )


def test_a_report_says_of_which_run_it_is_and_needs_no_folder_to_print(
    two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Machine and day; JSON and CSV of many runs come from a query."""
    path, runs = two
    lines = output(capsys, "report", str(path), "--summary").splitlines()
    assert {tuple(line.split(": ")[0].split(", ")) for line in lines} == {
        (f"Run {run.id}", fingerprint(run.environment), run.started[:10]) for run in runs
    }
    assert not (path / "reports").exists()
    with pytest.raises(SystemExit):
        main(["report", str(path), "--format", "json"])
    assert "is a dataset, of many runs: attnlab query" in capsys.readouterr().err


def test_what_a_terminal_would_act_on_is_not_shown(
    two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]
) -> None:
    """In values and in names of columns; in JSON it is escaped, and numbers that are not finite are texts."""
    sql = "select chr(27) || '[31mred' as \"[bold]\x1b[2Jname\", 'nan'::double as none, 1.5::decimal(4, 2) as exact"
    for form in ("table", "csv", "json"):
        shown = output(capsys, "query", str(two[0]), sql, "--format", form)
        assert "\x1b" not in shown
    (row,) = json.loads(shown)
    assert list(row.values()) == ["\x1b[31mred", "nan", 1.5]


def test_a_report_is_made_of_every_run(
    two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the dataset's folder, and of the same words as from the run's own."""
    path, runs = two
    output(capsys, "report", str(path))
    for run in runs:
        output(capsys, "report", str(run.folder))
        stored = (path / "reports" / run.id / "report.md").read_text(encoding="utf-8")
        assert stored == (run.folder / "report.md").read_text(encoding="utf-8")
    assert dataset.query(path, "select 1").foreign == ()


ENDLESS = """
import os, signal, sys, threading
from attnlab.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
main(["query", sys.argv[1], "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"])
"""


def test_ctrl_c_ends_a_query_whenever_it_comes(two: tuple[Path, list[Run]]) -> None:
    """While DuckDB computes, or before: status 130 and one line."""
    asked = [sys.executable, "-c", ENDLESS, str(two[0])]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert (told.returncode, told.stdout, told.stderr.strip()) == (130, "", "attnlab: interrupted")
