"""The notebooks run from their first cell to their last, and their pages on the site are theirs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
CODE = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def rendering() -> Any:
    """``docs/notebooks.py``."""
    spec = importlib.util.spec_from_file_location("notebooks_script", ROOT / "docs" / "notebooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def test_there_are_three_of_them() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, rendering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder; each cell that draws draws what the words beside it describe."""
    monkeypatch.chdir(tmp_path)
    script = path.read_text(encoding="utf-8")
    text = rendering.page(path.stem, script, tmp_path / "figures")
    assert "```text\n" in text
    drawing = [cell.alt for cell in rendering.cells(script) if cell.alt]
    assert drawing == re.findall(r"!\[(.*?)\]\(figures/", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_page_is_made_from_it(path: Path, rendering: Any) -> None:
    """Every cell, in its order; what it printed was measured when the page was made."""
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    anew = f"run python docs/notebooks.py {path.stem}"
    cells = list(rendering.cells(path.read_text(encoding="utf-8")))
    assert CODE.findall(page) == [cell.source for cell in cells if not cell.text], anew
    at = 0
    for cell in cells:
        at = page.find(cell.source, at)
        assert at >= 0, anew
    for figure in re.findall(r"\]\((figures/.*?)\)", page):
        assert (path.parent / figure).exists(), anew
