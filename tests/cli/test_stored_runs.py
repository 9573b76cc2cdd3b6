"""``attnlab report`` and ``show`` of a stored run."""

from __future__ import annotations

import json

from synthetic import synthetic
from typed import status


def test_a_stored_run_is_shown_as_data_and_reported(tmp_path, capsys) -> None:
    """Showing writes nothing. The report here is of a run without results, which has no figures to draw."""
    stored, out = tmp_path / "run", tmp_path / "other"
    stored.mkdir()
    synthetic(stored, lengths=(64, 1024), heads=(4,))
    before = {file: file.read_bytes() for file in stored.iterdir()}
    assert status("show", str(stored), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["use"] == "torch_sdpa" and [one["n"] for one in told["winners"]] == [64, 1024]
    assert status("show", str(stored), "--format", "bmf") == 0
    assert "latency" in json.loads(capsys.readouterr().out)["b1 h4 n64 d64 float32 cpu torch_sdpa"]
    assert {file: file.read_bytes() for file in stored.iterdir()} == before
    (stored / "results.jsonl").write_text("")
    (stored / "numerics.json").unlink()
    assert status("report", str(stored), "--out", str(out)) == 0
    assert f"The report: {out / 'report.md'}" in capsys.readouterr().out
    assert {one.name for one in out.iterdir()} == {"report.md", "details.md", "explore.html", "figures"}
