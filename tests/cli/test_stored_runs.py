"""``attnlab report`` and ``show`` of a stored run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import synthetic
from typed import status


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run of two workloads, on disk."""
    (tmp_path / "run").mkdir()
    return synthetic(tmp_path / "run", lengths=(64, 1024), heads=(4,)).folder


def test_the_report_is_written_and_its_verdict_printed(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here of a run without results, which has no figures to draw."""
    (stored / "results.jsonl").write_text("")
    (stored / "numerics.json").unlink()
    out = tmp_path / "other"
    assert status("report", str(stored), "--out", str(out)) == 0
    assert f"The report: {out / 'report.md'}" in capsys.readouterr().out
    assert (out / "report.md").exists() and (out / "explore.html").exists()


def test_data_is_printed_and_nothing_is_written(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.read_bytes() for file in stored.iterdir()}
    assert status("show", str(stored), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["use"] == "torch_sdpa" and [one["n"] for one in told["winners"]] == [64, 1024]
    assert status("show", str(stored), "--format", "bmf") == 0
    assert "latency" in json.loads(capsys.readouterr().out)["b1 h4 n64 d64 float32 cpu torch_sdpa"]
    assert {file: file.read_bytes() for file in stored.iterdir()} == before
