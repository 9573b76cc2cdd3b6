"""``attnlab report`` and ``show`` of a stored run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import synthetic
from typed import status

from attnlab.report import verdict_text


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run of two workloads, on disk."""
    (tmp_path / "run").mkdir()
    return synthetic(tmp_path / "run", lengths=(64, 1024), heads=(4,)).folder


def test_the_report_is_written_and_its_verdict_printed(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("report", str(stored)) == 0
    assert f"The report: {stored / 'report.md'}" in capsys.readouterr().out
    assert "<script" in (stored / "explore.html").read_text(encoding="utf-8")
    assert (stored / "report.md").read_text(encoding="utf-8").startswith("# Which attention to run here\n")
    out = tmp_path / "other"
    assert status("report", str(stored), "--format", "html", "--out", str(out)) == 0
    assert "<!doctype html>" in (out / "report.html").read_text(encoding="utf-8")


def test_data_is_printed_and_nothing_is_written(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in stored.iterdir()}
    assert status("report", str(stored), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["answer"]
    assert status("show", str(stored), "--json") == 0
    assert [one["n"] for one in json.loads(capsys.readouterr().out)["tables"]["winners"]] == [64, 1024]
    assert status("report", str(stored), "--format", "csv") == 0
    assert capsys.readouterr().out.startswith('"group","heads","n","contender",')
    assert status("report", str(stored), "--summary") == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert {file: file.read_bytes() for file in stored.iterdir()} == before


@pytest.mark.parametrize("count", [0, 1, 7, 16])
def test_a_run_is_shown_as_far_as_it_is(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it, half a workload, some, or all; in the words of its report."""
    found = synthetic(tmp_path, lengths=(64, 1024), heads=(4,), complete=count == 16)
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    if count < 16:
        (tmp_path / "results.jsonl").write_text("".join(lines[:count]), encoding="utf-8")
    assert status("show", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert shown.strip()
    if count == 16:
        said = verdict_text(found).splitlines()
        assert shown.startswith(said[0]) and shown.endswith(f"{said[-1]}\n") and "h4 n1024 " in shown
