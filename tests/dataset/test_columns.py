"""What a dataset's columns are, and that the page that describes them is current."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from attnlab.problem.result import Accuracy, Measurement, Result
from attnlab.problem.workload import Workload
from attnlab.runs.dataset_page import anew
from attnlab.runs.dataset_rows import race_columns, row_of
from attnlab.runs.dataset_schema import RESULTS, TABLES, VERDICT, arrow

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: attnlab[dataset]")
PAGE = Path(__file__).parents[2] / "docs" / "dataset.md"


def test_the_page_of_the_columns_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert anew(text) == text, "run python docs/dataset.py"


def test_a_page_with_another_column_is_not_current() -> None:
    """So that the test above can fail."""
    text = PAGE.read_text(encoding="utf-8")
    assert anew(text.replace("| `contender` |", "| `contestant` |", 1)) == text


def test_every_field_of_what_is_stored_has_a_column() -> None:
    """A field that is added to a result, its accuracy, its measurements or a workload cannot be forgotten."""
    schema = arrow("results")
    names = set(schema.names)
    results = {one.name for one in dataclasses.fields(Result)}
    assert results - names == {"workload"}
    assert {one.name for one in dataclasses.fields(Workload)} <= names
    accuracy, measurement = schema.field("accuracy").type, schema.field("measurements").type.value_type
    assert [one.name for one in accuracy] == [one.name for one in dataclasses.fields(Accuracy)]
    assert {one.name for one in measurement} == {one.name for one in dataclasses.fields(Measurement)} | {
        "median"
    }


def test_a_row_has_every_column_but_those_of_its_verdict() -> None:
    result = Result("a", Workload(), "declined", "no")  # type: ignore[arg-type]
    row = row_of(result, race_columns("0" * 16, result.workload), 0)
    assert row.keys() == {one.name for one in RESULTS} - {one.name for one in VERDICT}


def test_no_two_columns_of_a_table_share_a_name() -> None:
    for declared in TABLES.values():
        assert len({one.name for one in declared}) == len(declared)


def test_the_types_are_those_that_the_page_tells() -> None:
    """Arrow says them in the same words, but for the name of an element."""
    for table, declared in TABLES.items():
        for one in declared:
            told = str(arrow(table).field(one.name).type)
            for word in ("element: ", "item: "):
                told = told.replace(word, "")
            assert told.replace("map<string, string ('facts')>", "map<string, string>") == one.kind
