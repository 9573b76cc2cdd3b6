"""What the site is made with, beside what its strict build in tox holds: lists in docstrings, links, no network."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def hook(name: str) -> Any:
    """``docs/hooks/NAME.py``; skips where what it needs is not installed."""
    for library in ("mkdocs", "griffe"):
        pytest.importorskip(library, reason=f"{library} is not installed; pip install 'attnlab[docs]'")
    spec = importlib.util.spec_from_file_location(f"hook_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_entries_of_a_docstring_become_a_list() -> None:
    text = "What it is.\n\nq : (batch, n),\nas ever.\nk, v : the rest.\n\nRaises ValueError: never."
    assert hook("docstrings").listed(text) == (
        "What it is.\n\n\n- `q`: (batch, n),\n    as ever.\n- `k`, `v`: the rest.\n\nRaises ValueError: never."
    )


@pytest.mark.parametrize(
    ("here", "link", "there"),
    [
        ("index.md", "../benchmarks/results.md", "repository/benchmarks/results.md"),
        ("ideas/intervals.md", "../../README.md", "../index.md"),
        ("repository/benchmarks/results.md", "../docs/selftest/selftest.md", "../../selftest/selftest.md"),
        ("index.md", "nowhere.md", "nowhere.md"),
    ],
)
def test_links_between_files_become_links_between_pages(here: str, link: str, there: str) -> None:
    known = {"index.md", "repository/benchmarks/results.md", "selftest/selftest.md"}
    files = SimpleNamespace(get_file_from_path=lambda name: name if name in known else None)
    page = SimpleNamespace(file=SimpleNamespace(src_uri=here))
    text = hook("repository_files").on_page_markdown(f"see [it]({link})", page, None, files)
    assert text == f"see [it]({there})"


def test_what_a_page_would_fetch_from_elsewhere_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.html").write_text('<a href="https://x.org">x</a><script src="app.js"></script>')
    (tmp_path / "b.html").write_text('<script async src="https://cdn.org/x.js"></script>')
    hook("offline").on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    assert [one.getMessage() for one in caplog.records] == ["b.html would fetch https://cdn.org/x.js"]
