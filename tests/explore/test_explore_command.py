"""``attnlab explore``: where the page goes, whether it opens, and one line for every mistake."""

from __future__ import annotations

import json
import os
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest

from attnlab.__main__ import main
from attnlab.runs.store import RUN_FILE, Run

Make = Callable[..., Run]


def status(*arguments: object) -> int:
    """The exit status of ``attnlab explore ARGUMENTS``."""
    with pytest.raises(SystemExit) as end:
        main(["explore", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked to show, where there is one and a display."""
    asked: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")

    def opened(address: str) -> bool:
        asked.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opened)
    return asked


def test_the_page_stands_beside_the_run_and_opens(
    made: Make, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line tells where."""
    run = made()
    assert status(run.folder) == 0
    page = run.folder / "explore.html"
    assert started == [page.as_uri()]
    assert capsys.readouterr().out == f"The page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_it_does_not_open_where_it_is_asked_not_to(made: Make, started: list[str], tmp_path: Path) -> None:
    """Nor does it write elsewhere than it is told."""
    run, file = made(), tmp_path / "new" / "page.html"
    assert status(run.folder, made().folder, "--no-open", "--out", file) == 0
    assert file.is_file() and not started
    assert not (run.folder / "explore.html").exists()


@pytest.mark.parametrize("trouble", ["no display", "no browser", "refused"])
def test_without_a_browser_there_is_one_line_with_the_path(
    trouble: str, made: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no failure: the page is there."""

    def fail(address: str) -> bool:
        if trouble == "no browser":
            raise webbrowser.Error("could not locate runnable browser")
        return False

    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if trouble != "no display":
        monkeypatch.setenv("BROWSER", "nothing-of-this-name")
    monkeypatch.setattr(webbrowser, "open", fail)
    run = made()
    assert status(run.folder) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert str(run.folder / "explore.html") in line and "open it in a browser" in line


def test_a_folder_that_holds_no_run_is_one_line(
    made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of several it is, and nothing is written."""
    run = made()
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "missing"):
        assert status(run.folder, wrong, "--no-open") == 2
        assert capsys.readouterr().err.strip() == f"attnlab: {wrong} holds no run: there is no run.json in it"
    assert not (run.folder / "explore.html").exists()


def test_another_format_is_refused_by_name(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line that says what to do."""
    run = made()
    file = run.folder / RUN_FILE
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), "format": 99}), encoding="utf-8"
    )
    assert status(run.folder, "--no-open") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not of format 1; measure again with this version" in line


def test_a_page_that_cannot_be_written_is_one_line(
    made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of that name, a file where a folder should be, a folder that is read-only."""
    run = made()
    assert status(run.folder, "--out", tmp_path) == 2
    assert "is a directory" in capsys.readouterr().err
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert status(run.folder, "--out", tmp_path / "file" / "page.html") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "page.html cannot be written" in line and "--out" in line


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_run_is_one_line(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """It says to name another place."""
    run = made()
    run.folder.chmod(0o500)
    try:
        assert status(run.folder, "--no-open") == 1
    finally:
        run.folder.chmod(0o700)
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied; name another place with --out" in line
