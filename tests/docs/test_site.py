"""What the site is made with: docstrings as lists, formulas as MathML, links between files as links between pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def hook(name: str) -> Any:
    """``docs/hooks/NAME.py``; skips where what it needs is not installed."""
    for library in ("mkdocs", "griffe", "latex2mathml"):
        pytest.importorskip(library, reason=f"{library} is not installed; pip install 'attnlab[docs]'")
    spec = importlib.util.spec_from_file_location(f"hook_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_entries_of_a_docstring_become_a_list() -> None:
    listed = hook("docstrings").listed
    text = "What it is.\n\nq : (batch, n),\nas ever.\nk, v : the rest.\n\nRaises ValueError: never."
    assert listed(text) == (
        "What it is.\n\n\n- `q`: (batch, n),\n    as ever.\n- `k`, `v`: the rest.\n\nRaises ValueError: never."
    )


def test_terms_with_indented_meanings_become_a_list() -> None:
    found = hook("docstrings").listed(
        "It holds\n\n``X``\n    this\n    and that.\n``Y``, optional\n    those."
    )
    assert [line for line in found.splitlines() if line.startswith("- ")] == [
        "- ``X``:",
        "- ``Y``, optional:",
    ]
    assert "    and that." in found


def test_every_entry_of_what_attnlab_offers_is_on_a_line_of_its_own() -> None:
    """``a : this. b : that`` in one line would hide b."""
    import re

    import attnlab

    theory = {f"theory.{name}": getattr(attnlab.theory, name) for name in attnlab.theory.__all__}
    offered = {name: getattr(attnlab, name) for name in attnlab.__all__}
    described = {name: one for name, one in (offered | theory).items() if callable(one)}
    for name, one in described.items():
        text = one.__doc__ or ""
        assert text, name
        for line in text.splitlines():
            entry = re.match(r"\s*\w+(, \w+)* : (.*)", line)
            assert not entry or not re.search(r"\. \w+ : ", entry[2]), f"{name}: {line}"


def test_the_reference_has_all_that_attnlab_offers() -> None:
    import attnlab

    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    missing = [one for one in attnlab.__all__ if f"::: attnlab.{one}\n" not in page]
    assert missing == ["theory"]  # which has a page of its own
    page = (ROOT / "docs" / "reference" / "theory.md").read_text(encoding="utf-8")
    assert [one for one in attnlab.theory.__all__ if one not in page] == []


def test_formulas_become_mathml() -> None:
    drawn = hook("formulas").on_page_content(
        r'a <span class="arithmatex">\(x &lt; \sqrt{2}\)</span> b <div class="arithmatex">\[y\]</div>',
        None,
        None,
        None,
    )
    assert drawn.startswith("a <math") and "<msqrt>" in drawn and 'display="block"' in drawn
    assert "arithmatex" not in drawn


@pytest.mark.parametrize(
    ("here", "link", "there"),
    [
        ("how-to/ci.md", "../architecture.md#x", "../architecture.md#x"),
        ("index.md", "../benchmarks/results.md", "repository/benchmarks/results.md"),
        ("ideas/intervals.md", "../../README.md", "../index.md"),
        ("repository/benchmarks/results.md", "../docs/selftest/selftest.md", "../../selftest/selftest.md"),
        ("index.md", "nowhere.md", "nowhere.md"),
        ("index.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_between_files_become_links_between_pages(here: str, link: str, there: str) -> None:
    pages = {"index.md", "architecture.md", "repository/benchmarks/results.md", "selftest/selftest.md"}
    files = SimpleNamespace(get_file_from_path=lambda name: name if name in pages else None)
    page = SimpleNamespace(file=SimpleNamespace(src_uri=here))
    text = hook("repository_files").on_page_markdown(f"see [it]({link})", page, None, files)
    assert text == f"see [it]({there})"


def test_a_pattern_in_the_navigation_stands_for_pages_without_a_place_of_their_own(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    for name in ("docs/index.md", "docs/ideas/b.md", "docs/ideas/a.md", "reports/x/report.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# x")
    nav = ["index.md", {"Ideas": ["ideas/b.md", "ideas/*.md"]}, "repository/reports/**/*.md", "none-*.md"]
    found = hook("repository_files").on_config(SimpleNamespace(nav=nav, docs_dir=str(docs))).nav
    assert found == ["index.md", {"Ideas": ["ideas/b.md", "ideas/a.md"]}, "repository/reports/x/report.md"]


def test_what_a_page_would_fetch_from_elsewhere_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.html").write_text('<a href="https://x.org">x</a><script src="app.js"></script>')
    (tmp_path / "b.html").write_text('<script async src="https://cdn.org/x.js"></script>')
    hook("offline").on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    assert [one.getMessage() for one in caplog.records] == ["b.html would fetch https://cdn.org/x.js"]
