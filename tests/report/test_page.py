"""The interactive page contains the run's data, and markup in reasons and kernels stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnlab.report.explore import page
from attnlab.report.frames import Frames
from attnlab.runs.store import Run

NASTY = "</script><script>alert(1)</script><b>x</b>"
PAIR = ("torch_eager", "torch_sdpa")


class Tags(HTMLParser):
    """Every tag of the page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def hostile(made: Callable[..., Run]) -> Run:
    """A run of two contenders with markup in a reason and a kernel."""
    run = made(contenders=PAIR, lengths=(64, 256), heads=(1,), rounds=6)
    run.results = [replace(one, kernel=NASTY) for one in run.results]
    run.results[0] = replace(run.results[0], reason=NASTY)
    return run


def test_the_page_is_one_file_with_the_data_and_no_tag_from_it(hostile: Run) -> None:
    text = page(Frames(hostile), "**Use `torch_sdpa`** <b>here</b>")
    tags = Tags(text).found
    names = [name for name, _ in tags]
    assert names.count("script") == 3 and "b" not in names and not {"link", "iframe", "img"} & set(names)
    assert not [one for _, one in tags if {"src", "href", "onclick"} & one.keys()]
    assert "default-src 'none'" in text and "<strong>Use <code>torch_sdpa</code></strong>" in text
    spec = json.loads(re.findall(r'id="spec">(.*?)</script>', text, re.S)[0])
    data = spec["datasets"]
    assert [row["contender"] for row in data["results"][:2]] == [*PAIR]
    assert data["results"][0]["kernel"] == NASTY
    assert len(data["winners"]) == 2 and len(data["rounds"]) == 4 * 6
    assert names.count("tr") == 1 + len(hostile.results) and len(text) < 2_000_000


def test_what_failed_has_a_row_with_its_reason_and_no_time(made: Callable[..., Run]) -> None:
    run = made(contenders=PAIR, lengths=(64,), heads=(1,), rounds=6, wrong=PAIR[:1])
    text = page(Frames(run), "verdict")
    assert re.search("<td>torch_eager<td>wrong<td data-value=[^>]*>–<td.*<td>relative error 0.31", text)


def test_charts_and_table_work_in_a_browser(hostile: Run, tmp_path: Path) -> None:
    """Opened from disk, without a network: charts are drawn, a click sorts, words filter, there are no errors."""
    tool = pytest.importorskip("playwright.sync_api", reason="pip install --group page-test")
    file = tmp_path / "page.html"
    file.write_text(page(Frames(hostile), "verdict"), encoding="utf-8")
    with tool.sync_playwright() as playwright:
        installed = map(shutil.which, ("chromium-headless-shell", "chromium"))
        found = (playwright.chromium.executable_path, *installed)
        program = next((one for one in found if one and Path(one).exists()), None)
        if program is None:
            pytest.skip("there is no browser here: playwright install chromium, or apt install chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = browser.new_context(offline=True).new_page()
        complaints: list[str] = []
        opened.on("console", lambda one: complaints.append(one.text))
        opened.on("pageerror", lambda one: complaints.append(str(one)))
        opened.goto(file.as_uri())
        opened.wait_for_selector("html[data-ready]")
        assert opened.locator("#charts canvas, #charts svg").count() > 0
        opened.get_by_role("button", name="time").click()
        shown = opened.locator("#results tbody tr td:nth-child(6)").evaluate_all(
            "all => all.map(td => +td.dataset.value)"
        )
        assert shown == sorted(shown)
        opened.fill("#filter", "sdpa 256")
        assert opened.locator("#results tbody tr:visible").count() == 1
        browser.close()
    assert not complaints
