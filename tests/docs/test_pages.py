"""Every code block of the README and of the documentation does what its page says, and no page is out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import NOTEBOOKS, ROOT, Reader, blocks, pages, script

import attnlab

RENDERING = script(ROOT / "docs" / "notebooks.py")
PATHS = sorted(NOTEBOOKS.glob("*.py"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reader runs all blocks of a page from its top."""
    monkeypatch.setenv("COLUMNS", "200")
    reader = Reader(tmp_path)
    for block in blocks(page):
        try:
            assert block.mark != "parsed" or len(block.said.split()) > 1, "why is it not run?"
            reader.does(block)
        except BaseException as fault:
            fault.add_note(f"in the block at {page}:{block.line}")
            raise


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in an empty folder. The figures are those of the cells with a description, in their order."""
    monkeypatch.chdir(tmp_path)
    script = path.read_text(encoding="utf-8")
    text = RENDERING.page(path.stem, script, tmp_path / "figures")
    drawing = [cell.alt for cell in RENDERING.cells(script) if cell.alt]
    assert drawing == re.findall(r"!\[(.*?)\]\(figures/", text)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_page_of_a_notebook_is_made_from_it(path: Path) -> None:
    """The page has every cell, in its order. Printed output is not compared: it was measured when the page was made."""
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    at = 0
    for cell in RENDERING.cells(path.read_text(encoding="utf-8")):
        at = page.find(cell.source, at)
        assert at >= 0, f"run python docs/notebooks.py {path.stem}"
    assert all((path.parent / figure).exists() for figure in re.findall(r"\]\((figures/.*?)\)", page))


def test_the_reference_has_all_that_attnlab_offers() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    missing = [one for one in attnlab.__all__ if f"::: attnlab.{one}\n" not in page]
    # theory has a page of its own
    assert missing == ["theory"], "docs/reference/python.md needs a line `::: attnlab.NAME` for each"
    page = (ROOT / "docs" / "reference" / "theory.md").read_text(encoding="utf-8")
    assert [one for one in attnlab.theory.__all__ if one not in page] == []
