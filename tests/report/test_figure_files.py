"""Figures as files: the same whichever process writes them, and one error for the user where that is not possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from attnlab.figures import Drawn, new_figure
from attnlab.judge import growth
from attnlab.report import formats, write
from attnlab.report.formats import Writing
from attnlab.runs.store import Run

Make = Callable[..., Run]


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a report but its page, by name."""
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in folder.rglob("*.*")
        if one.name != "report.md"
    }


def test_the_report_of_a_large_run_is_that_of_a_small_one(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fits and figures come from processes of their own, of which none is left."""
    run = made(lengths=(64, 128, 256, 512, 1024), heads=(1, 4), variants=({}, {"dtype": "float64"}))
    here = write(run, tmp_path / "here")
    monkeypatch.setattr(growth, "MANY", 1)
    monkeypatch.setattr(formats, "LARGE", 1)
    for module in (growth, formats):
        monkeypatch.setattr(module, "cores", lambda: 2)
    aside = write(run, tmp_path / "aside")
    assert psutil.Process().children() == []
    assert aside.read_text(encoding="utf-8") == here.read_text(encoding="utf-8")
    written = files(aside.parent)
    assert len(written) > 10 and any(name.endswith(".svg") for name in written)
    assert {name: data for name, data in written.items() if not name.endswith("parquet")} == {
        name: data for name, data in files(here.parent).items() if not name.endswith("parquet")
    }


@pytest.mark.parametrize("aside", [False, True])
def test_a_figure_that_cannot_be_written_raises_in_the_process_that_asked(
    tmp_path: Path, aside: bool
) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        Writing({"taken/figure": Drawn(new_figure()[0], "nothing")}, tmp_path, aside=aside).finish()
    assert psutil.Process().children() == []


def test_figures_of_an_earlier_report_are_gone(tmp_path: Path) -> None:
    for number in (1, 2):
        pictures = Writing({f"figure-{number}": Drawn(new_figure()[0], "nothing")}, tmp_path).pictures
    assert sorted(one.name for one in tmp_path.iterdir()) == ["figure-2.png", "figure-2.svg"]
    assert pictures["figure-2"].file.is_file() and pictures["figure-2"].says == "nothing"
