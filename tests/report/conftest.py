"""Runs made up from cost models, and a real browser that shows the page of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opened_page import Opened, find_browser
from synthetic import synthetic

from attnlab.report.explore_page import render
from attnlab.runs.store import Run


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run in a folder of its own, a small one by default; the arguments are those of `synthetic`."""

    def make(folder: str = "", **options: Any) -> Run:
        place = tmp_path / (folder or f"run{len(list(tmp_path.iterdir()))}")
        place.mkdir()
        return synthetic(place, **{"lengths": (64, 256, 1024), "heads": (1, 4), **options})

    return make


@pytest.fixture(scope="module")  # the tests of other modules count their processes
def browser() -> Iterator[Any]:
    """Chromium without a window; skipped where it, or Playwright, is not installed."""
    tool = pytest.importorskip("playwright.sync_api", reason="pip install --group page-test")
    with tool.sync_playwright() as playwright:
        found = find_browser(playwright)
        if found is None:
            pytest.skip("there is no browser here: no Chromium and no Chrome")
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of runs from disk; in the end none may have complained, as of what its policy refuses.

    Further arguments are those of a browser's context;
    lacking : what the browser is to be without.
    """
    contexts, pages = [], []

    def open_page(
        *runs: Run, lacking: str = "", width: int = 1280, height: int = 800, **options: Any
    ) -> Opened:
        file = tmp_path / "page.html"
        file.write_text(render(runs), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        context.add_init_script(f"delete window.{lacking or 'nothing'}")
        found = Opened(context.new_page())
        found.page.on("console", lambda one: found.complaints.append(one.text))
        found.page.on("pageerror", lambda one: found.complaints.append(str(one)))
        found.page.goto(file.as_uri())
        found.page.wait_for_selector("#too-old" if lacking else "html[data-ready]")
        pages.append(found)
        return found

    yield open_page
    for one in contexts:
        one.close()
    assert [one.complaints for one in pages] == [[]] * len(pages)
