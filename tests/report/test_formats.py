"""HTML, JSON, CSV, Parquet and the line for CI: the same content, harmless whatever stands in it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.errors import NotStored
from attnlab.problem.result import Outcome
from attnlab.report import data_tables, formats, write
from attnlab.report.formats import content_of

NASTY = "<script>alert(1)</script>"
SMALL = {"lengths": (64, 256), "heads": (1,), "contenders": ("torch_eager", "torch_sdpa")}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_file_without_scripts_or_anything_from_elsewhere(made):
    file = formats.write_html(made(**SMALL))
    page = Page(file.read_text(encoding="utf-8"))
    names = [name for name, _ in page.tags]
    assert {"h1", "table", "img", "title"} <= set(names) and not {"script", "link", "iframe"} & set(names)
    (policy,) = [one["content"] for _, one in page.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    for name, attributes in page.tags:
        assert "style" not in attributes and not any(one.startswith("on") for one in attributes)
        if name == "img":
            assert attributes["src"].startswith("data:image/png;base64,") and attributes["alt"]
            assert int(attributes["width"]) > 0 and int(attributes["height"]) > 0
        if name == "a":
            assert attributes["href"].startswith("tables/") and (file.parent / attributes["href"]).is_file()
    assert "Use torch_sdpa: nothing is decidedly faster at any of 2 sizes." in page.text
    assert not (file.parent / "figures").exists()


def hostile(run):
    """With a contender that is called by a tag, reasons that are, and an environment that is."""

    def renamed(one):
        name = NASTY if one.contender == "torch_sdpa" else one.contender
        return replace(one, contender=name, kernel=f"=cmd|{NASTY}")

    run.results = [renamed(one) for one in run.results]
    run.contenders = tuple(NASTY if one == "torch_sdpa" else one for one in run.contenders)
    run.environment = {"cpu": f"![x](http://x/{NASTY})", NASTY: f"=1+1 {NASTY}"}
    run.command = f"attnlab run ```</code>{NASTY}"
    return run


def test_a_tag_in_a_name_stays_text_in_every_format(made):
    run = hostile(made(**SMALL))
    page = Page(formats.write_html(run).read_text(encoding="utf-8"))
    assert NASTY in page.text
    assert not {"script", "b", "a"} & {
        name for name, one in page.tags if name != "a" or "tables" not in one["href"]
    }
    assert all(one["src"].startswith("data:") for name, one in page.tags if name == "img")
    assert "<script" not in formats.summary(run)
    assert "<script" not in formats.csv_text(run)
    assert "<script" not in json.dumps(json.loads(formats.json_text(run))["tables"])


def test_json_holds_the_answer_and_every_table(made):
    run = made(**SMALL)
    told = json.loads(formats.json_text(run))
    assert told["answer"] == "Use torch_sdpa: nothing is decidedly faster at any of 2 sizes."
    assert told["complete"] is True and told["warnings"] == []
    assert len(told["tables"]["winners"]) == 2
    for row in told["tables"]["winners"]:
        assert (row["sure"], row["first"], row["next"]) == ("decided", "torch_sdpa", "torch_eager")
        assert 1 < row["over_next_low"] <= row["over_next"] <= row["over_next_high"]


def test_csv_has_a_row_a_contender_and_workload(made):
    run = made(**{**SMALL, "contenders": ("torch_eager", "torch_sdpa", "torch_sdpa_cudnn")})
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(run))))
    assert len(rows) == 6
    assert [row["median_s"] for row in rows if row["outcome"] == "declined"] == ["", ""]
    times = {(row["n"], row["contender"]): float(row["median_s"]) for row in rows if row["median_s"]}
    for one in run.results:
        if one.outcome is Outcome.MEASURED:
            assert times[str(one.workload.keys), one.contender] == one.latency.median


@given(
    st.lists(
        st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20)), min_size=1
    )
)
def test_no_cell_begins_a_formula_and_texts_come_back(values):
    """A spreadsheet computes what begins so; numbers may be negative."""
    text = data_tables.csv_text([{"a": one} for one in values])
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    for value, row in zip(values, rows, strict=True):
        cell = row[0] if row else ""
        if isinstance(value, str):
            assert not cell.startswith(("=", "+", "-", "@"))
            assert cell in (value, f"'{value}")
        elif value is not None:
            assert float(cell) == float(value)


def test_parquet_says_what_csv_says(made, tmp_path: Path):
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed: pip install 'attnlab[dataset]'"
    )
    tables = dict(content_of(made(**SMALL)).tables())
    assert data_tables.write(tables.items(), tmp_path / "tables") == list(tables)
    for name, table in tables.items():
        rows = parquet.read_table(tmp_path / "tables" / f"{name}.parquet").to_pylist()
        assert len(rows) == len(table)
        for row, expected in zip(rows, table, strict=True):
            assert list(row) == list(expected)
            assert all(row[name] == value or str(value) == row[name] for name, value in expected.items())


def test_without_pyarrow_there_is_csv_alone(made, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(data_tables, "with_parquet", lambda: False)
    data_tables.write(content_of(made(**SMALL)).tables(), tmp_path / "tables")
    assert {one.suffix for one in (tmp_path / "tables").iterdir()} == {".csv"}


def test_an_experiment_cannot_name_a_file_elsewhere(tmp_path: Path):
    data_tables.write([("finding-../../x", [{"a": 1}])], tmp_path / "tables")
    assert [one.name for one in (tmp_path / "tables").glob("*.csv")] == ["finding-______x.csv"]


def test_the_summary_is_one_line_that_answers(made):
    told = formats.summary(made(**SMALL, complete=False))
    assert "\n" not in told and len(told) < 600
    assert told.startswith("**Use `torch_sdpa`**: nothing is decidedly faster at any of 2 sizes.")
    assert told.endswith("1 warning: see the report.")
    assert "2 of 2 workloads measured" in told


@pytest.mark.parametrize("written", [write, formats.write_html])
def test_a_folder_that_cannot_be_written_to_is_one_line(made, tmp_path: Path, written):
    """A file stands in its place, which stops whoever may write anywhere, too."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotStored) as told:
        written(made(**SMALL), tmp_path / "taken")
    assert re.fullmatch(
        rf"the report cannot be written into {re.escape(str(tmp_path / 'taken'))}: .+; "
        "give another folder with --out",
        str(told.value),
    )


def test_a_report_goes_to_another_folder_and_leaves_the_run_alone(made, tmp_path: Path):
    run = made(**SMALL)
    before = sorted(run.folder.iterdir())
    page = write(run, tmp_path / "elsewhere" / "report")
    assert (
        page.parent == tmp_path / "elsewhere" / "report"
        and (page.parent / "figures" / "winners.svg").is_file()
    )
    assert sorted(run.folder.iterdir()) == before
