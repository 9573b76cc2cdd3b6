"""Runs made up from cost models, and a real browser that shows the page of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opened_page import BROWSERS, Opened, find_browser
from synthetic import synthetic

from attnlab.report.explore_page import LIMIT, render
from attnlab.runs.store import Run

#: told before anything else of the page runs: what its policy refuses, and what moves without being asked
_WATCH = """
window.seen = {refused: [], moved: 0};
addEventListener("securitypolicyviolation", (event) => seen.refused.push(event.violatedDirective));
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) seen.moved += one.value;
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run in a folder of its own; the arguments are those of `synthetic`."""
    count = 0

    def make(folder: str = "", **options: Any) -> Run:
        nonlocal count
        count += 1
        place = tmp_path / (folder or f"run{count}")
        place.mkdir()
        return synthetic(place, **{"lengths": (64, 256, 1024), "heads": (1, 4), **options})

    return make


@pytest.fixture(scope="module")  # the tests of other modules count their processes
def browser() -> Iterator[Any]:
    """Chromium without a window; skipped where it, or Playwright, is not installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; pip install 'attnlab[page-test]'"
    )
    with playwright.sync_playwright() as tool:
        found = find_browser(tool)
        if found is None:
            pytest.skip(f"there is no browser here: none of {', '.join(BROWSERS)}")
        opened = tool.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of runs from disk, in a browser that may be `without` something of its own.

    Further arguments are those of a browser's context.
    """
    contexts = []

    def open_page(
        *runs: Run,
        width: int = 1280,
        height: int = 800,
        limit: int = LIMIT,
        without: str | None = None,
        **options: Any,
    ) -> Opened:
        file = tmp_path / "page.html"
        file.write_text(render(runs, limit), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        context.add_init_script(_WATCH)
        if without:
            context.add_init_script(f"delete window.{without}")
        found = Opened(context.new_page())
        found.page.set_default_timeout(10_000)
        found.page.on("console", lambda one: found.complaints.append(one.text))
        found.page.on("pageerror", lambda one: found.complaints.append(str(one)))
        found.page.goto(file.as_uri())
        if not without:
            found.page.wait_for_selector("html[data-ready]")
        return found

    yield open_page
    for one in contexts:
        one.close()
