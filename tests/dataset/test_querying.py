"""A dataset answers SQL: who wins where as its runs' reports say, and nothing but the dataset is seen."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typed import status

from attnlab.environment import fingerprint
from attnlab.runs.store import Run

pytest.importorskip("pyarrow", reason="pyarrow is not installed: attnlab[dataset]")
pytest.importorskip("duckdb", reason="duckdb is not installed: attnlab[dataset]")

from attnlab.runs import dataset

Made = Callable[..., Run]


def ask(path: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of the answer, by column."""
    answer = dataset.query(path, sql)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


# -- verdicts ----------------------------------------------------------------------------------------


def test_who_wins_where_is_what_the_report_says(two: tuple[Path, list[Run]]) -> None:
    """Of every race those who share the first place, each machine by itself, decided or tied."""
    path, runs = two
    for run in runs:
        for cell in run.judged().cells:
            where = f"where run = '{run.id}' and label = '{cell.workload.label}'"
            first = ask(path, f"select * from verdicts {where} and standing in ('wins', 'tied')")
            assert cell.ranking is not None
            assert {one["contender"] for one in first} == {one.contender for one in cell.ranking.first}
            assert {one["standing"] for one in first} == {"wins" if len(first) == 1 else "tied"}
            assert len({(one["machine"], one["race"]) for one in first}) == 1
            slower = ask(path, f"select contender from verdicts {where} and standing = 'slower'")
            others = {one.contender for one in cell.ranking.standings} - {one["contender"] for one in first}
            assert {one["contender"] for one in slower} == others


# -- views -------------------------------------------------------------------------------------------


def test_every_round_is_there(two: tuple[Path, list[Run]]) -> None:
    """With its process and whether it was disturbed; every quantity with its samples."""
    path, runs = two
    result = runs[0].results[2]
    where = f"where run = '{runs[0].id}' and label = '{result.workload.label}' and contender = 'torch_sdpa'"
    rows = ask(
        path, f"select seconds, round, process, placement, disturbed from rounds {where} order by round"
    )
    assert result.latency is not None
    noted = ("round", "process", "placement", "disturbed")
    columns = [result.latency.samples, *(result.latency.columns[name] for name in noted)]
    assert [tuple(one.values()) for one in rows] == list(zip(*columns, strict=True))
    kinds = ask(path, f"select quantity, unit, samples from measurements {where}")
    assert [(one["quantity"], one["unit"], tuple(one["samples"])) for one in kinds] == [
        (one.quantity, one.unit, one.samples) for one in result.measurements
    ]


def test_a_folder_of_any_name_is_read(made: Made, tmp_path: Path) -> None:
    """Signs that are patterns to a program that lists files, and quotes."""
    run, path = made(), tmp_path / "it's [all] of*it" / "a=b"
    dataset.collect([run.folder], path)
    assert ask(path, "select count(*) as n from results") == [{"n": len(run.results)}]


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", 'cannot be answered: Parser Error: syntax error at or near "selec"'),
        ("select 1; select 2", "must be one SELECT, got 2 statements"),
        ("copy (select 1) to '{folder}/written.csv'", "must be one SELECT, got COPY"),
        ("select * from read_text('{folder}/secret.txt')", "file system operations are disabled"),
        ("select * from '{folder}/secret.txt'", "does not exist"),
        ("select * from read_parquet('https://example.org/x.parquet')", "cannot be answered"),
        ("select * from dataset", "Table with name dataset does not exist"),
    ],
)
def test_a_mistake_or_a_look_elsewhere_is_one_line(
    sql: str, said: str, two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither files nor networks nor variables of Python are seen, and nothing is written."""
    path, _ = two
    folder = path.parent
    (folder / "secret.txt").write_text("not to be read\n")
    before = sorted(folder.rglob("*"))
    assert status("query", str(path), sql.format(folder=folder)) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert "not to be read" not in told.err
    assert sorted(folder.rglob("*")) == before


# -- the command -------------------------------------------------------------------------------------


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert status(*words) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_the_formats_hold_the_same(two: tuple[Path, list[Run]], capsys: pytest.CaptureFixture[str]) -> None:
    path, sql = (
        two[0],
        "select contender, ratio, causal, date from verdicts where standing = 'slower' order by 1, 2",
    )
    rows = json.loads(output(capsys, "query", str(path), sql, "--format", "json"))
    assert rows == [one | {"date": one["date"].isoformat()} for one in ask(path, sql)]
    lines = list(csv.DictReader(io.StringIO(output(capsys, "query", str(path), sql, "--format", "csv"))))
    told = [(one["contender"], one["ratio"], "") for one in rows]
    assert [(one["contender"], float(one["ratio"]), one["causal"]) for one in lines] == told
    for form in ("table", "md"):
        table = output(capsys, "query", str(path), sql, "--format", form)
        assert all(f"{one['ratio']:.6g}" in table for one in rows)


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
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the dataset's folder, and of the same words as from the run's own; it says of which run it is."""
    run, path = made(lengths=(64,), heads=(1,)), tmp_path / "all"
    dataset.collect([run.folder], path)
    said = output(capsys, "report", str(path), "--summary")
    assert said.startswith(f"Run {run.id}, {fingerprint(run.environment)}, {run.started[:10]}: ")
    assert not (path / "reports").exists()
    output(capsys, "report", str(path))
    output(capsys, "report", str(run.folder))
    stored = (path / "reports" / run.id / "report.md").read_text(encoding="utf-8")
    assert stored == (run.folder / "report.md").read_text(encoding="utf-8")
    assert dataset.query(path, "select 1").foreign == ()
