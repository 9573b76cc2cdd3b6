"""``attnlab explore``: where the page goes, whether it opens, and one line for every mistake."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
from opened_page import Make

from attnlab.__main__ import main
from attnlab.runs.store import RUN_FILE


def status(*arguments: object) -> int:
    """The exit status of ``attnlab explore ARGUMENTS``."""
    with pytest.raises(SystemExit) as end:
        main(["explore", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.mark.parametrize("opens", [True, False])
def test_the_page_stands_beside_the_run_and_opens_where_it_can(
    opens: bool, made: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or opens)
    run = made()
    page = run.folder / "explore.html"
    assert status(run.folder) == 0
    assert asked == [page.as_uri()] and page.read_text(encoding="utf-8").startswith("<!doctype html>")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"The page: {page}") and ("open it in a browser" in line) is not opens
    assert status(run.folder, made().folder, "--no-open", "--out", run.folder / "new" / "page.html") == 0
    assert (run.folder / "new" / "page.html").is_file() and len(asked) == 1


def test_every_mistake_is_one_line(made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = made(), made()
    (tmp_path / "file").write_text("", encoding="utf-8")
    stored = json.loads((other.folder / RUN_FILE).read_text(encoding="utf-8"))
    (other.folder / RUN_FILE).write_text(json.dumps({**stored, "format": 99}), encoding="utf-8")
    for arguments, code, said in (
        ([run.folder, tmp_path], 2, f"{tmp_path} holds no run: there is no run.json in it"),
        ([run.folder, tmp_path / "missing"], 2, "missing holds no run"),
        ([other.folder], 2, "is not of format 1; measure again with this version"),
        ([run.folder, "--out", tmp_path], 2, "is a directory"),
        ([run.folder, "--out", tmp_path / "file" / "page.html"], 1, "cannot be written"),
    ):
        assert status(*arguments, "--no-open") == code
        assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (run.folder / "explore.html").exists()
