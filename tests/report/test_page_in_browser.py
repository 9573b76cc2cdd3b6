"""The page in a real browser, offline and from disk: what it says, how it is used, and that it lets nothing else in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from opened_page import PHONE, TWO_OF_EACH, VIEWS, Make, Open
from synthetic import alone_in_process_0

from attnlab.figures import COLOURS, contrast
from attnlab.report.analysis import analyse
from attnlab.report.answer import answer_of
from attnlab.report.layout import plain
from attnlab.runs.store import Run
from attnlab.text import ratio_text, seconds_text

PAIR = ("torch_eager", "torch_sdpa")


@pytest.mark.parametrize(
    "options", [PHONE, {"width": 320, "height": 600, "color_scheme": "dark"}, {"width": 1280}]
)
def test_every_view_is_drawn_on_any_screen(options: dict[str, Any], made: Make, opened: Open) -> None:
    """From disk and offline, no wider than the screen, dark on a dark one; every control has a name to hear."""
    found = opened(made(variants=TWO_OF_EACH), **options)
    for name in VIEWS:
        assert len(found.view(name)) > 200
        assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        unnamed = found.page.eval_on_selector_all(
            "input, select, button, .chart, [role=region]",
            "all => all.filter((one) => !(one.labels?.[0]?.textContent || one.textContent.trim()"
            " || one.getAttribute('aria-label'))).map((one) => one.outerHTML)",
        )
        assert unnamed == [], name
    ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = max(map(int, re.findall(r"\d+", ground))) < 60
    assert dark is ("color_scheme" in options)


def test_what_the_page_does_not_bring_is_refused(made: Make, opened: Open) -> None:
    """A script that is not its own; and a browser that cannot unpack its data is told so."""
    found = opened(made(heads=(1,)))
    own = "Object.assign(document.createElement('script'), {text: 'ran = 1'})"
    found.page.evaluate(f"document.body.append({own})")
    assert found.page.evaluate("window.ran ?? 0") == 0
    assert "Content Security Policy" in found.complaints.pop()
    old = opened(made(heads=(1,)), lacking="DecompressionStream")
    assert old.text("body").startswith("This browser cannot unpack the data of this page")


def test_hostile_text_stays_text(made: Make, opened: Open) -> None:
    """Names, reasons, kernels, settings, machine and command are shown as they were written, and do nothing."""
    hostile, worse = "<script>window.ran=1</script>", "</script><img src=x onerror=window.ran=2>"
    costs = {hostile: lambda one: 1e-5 + 1e-9 * one.pairs, "torch_eager": lambda one: 2e-5 + 2e-9 * one.pairs}
    names = (hostile, "torch_eager", "refuses")
    run = made(costs=costs, contenders=names, kernels={hostile: worse}, baseline="torch_eager")
    results = [replace(one, reason=one.reason and worse) for one in run.results]
    facts = {"versions": {worse: hostile}, "modes": {hostile: worse}}
    environment = {**run.environment, "cpu": worse, "contenders": {hostile: facts}}
    found = opened(replace(run, results=results, environment=environment, command=worse, started=hostile))
    found.tick("never", "refuses", on=True)
    texts = {name: found.view(name) for name in VIEWS}
    assert hostile in found.text("#head") and worse in found.text("#head")
    assert texts["table"].count(worse) > 1 and texts["runs"].count(worse) >= 3
    assert found.page.evaluate("window.ran") is None and found.page.locator("img").count() == 0


def test_the_page_says_what_the_report_says(made: Make, opened: Open) -> None:
    """The answer, the winner of each cell and how far it is ahead, and every time, as the report writes them."""
    run = made()
    analysis, found = analyse(run), opened(run)
    answer = answer_of(analysis)
    assert all(plain(one) in found.text("#head") for one in (answer.line, *answer.sentences))
    found.page.locator("#view .chart").first.focus()
    for cell in sorted(analysis.cells, key=lambda one: (one.workload.keys, one.workload.heads)):
        found.page.keyboard.press("ArrowRight")
        told, lead = found.page.locator("#tip").text_content(), cell.won.ahead
        assert f"first: {', '.join(cell.won.first)}\n" in told and f"verdict: {cell.won.sure}\n" in told
        assert lead is not None and f"{ratio_text(lead.ratio)} [" in told and f"fast as {lead.over}" in told
    table = found.view("table")
    for one in run.results:
        if one.latency is not None and "#" not in one.contender:
            assert seconds_text(one.latency.median) in table.replace("\n", "")


def test_points_are_reached_by_pointer_touch_and_keyboard(made: Make, opened: Open) -> None:
    """Tab goes through filters, views and charts, arrows through views and points, Enter picks, Escape hides."""
    found = opened(made(contenders=PAIR), **PHONE)
    reached = set()
    for _ in range(15):
        found.page.keyboard.press("Tab")
        reached |= set(
            found.page.evaluate("[document.activeElement.className, document.activeElement.tagName]")
        )
    assert {"chart", "skip", "SELECT", "INPUT", "SUMMARY"} <= reached
    found.page.locator("#view .chart").first.focus()
    for _ in range(3):
        found.page.keyboard.press("ArrowRight")
    found.page.keyboard.press("Enter")
    assert "Ranking at n = 256, 1 head" in found.text("#view")
    found.page.locator("#tabs :checked").focus()
    found.page.keyboard.press("ArrowRight")
    assert "time of one call" in found.text("#view")
    chart = found.page.locator("#view .chart").first
    chart.scroll_into_view_if_needed()
    dot = chart.locator('[aria-label="dot"] path').nth(1).bounding_box()
    found.page.touchscreen.tap(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    told = chart.locator('[aria-label="tip"]').text_content()
    for words in ("peak memory", "kernel", "threads", "of the error allowed"):
        assert words in told


def test_filters_and_axes_change_what_is_shown(made: Make, opened: Open) -> None:
    run = made(variants=TWO_OF_EACH, contenders=(*PAIR, "numpy_vectorized"))
    found = opened(run)
    count = len(run.results)
    fields = {"backend": ("torch_sdpa", 2 / 3), "keys": ("256", 2 / 3), "dtype": ("bfloat16", 1 / 2)}
    for name, (label, left) in fields.items():
        found.tick(name, label, on=False)
        assert f"{round(count * left)} results" in found.view("table"), name
        found.tick(name, label, on=True)
    found.view("figures")
    measured = found.points()
    for name, label in (("backend", "torch_sdpa"), ("dtype", "bfloat16")):
        found.tick(name, label, on=False)
    assert measured > found.points() == 12
    found.pick("against", "heads")
    assert "n = 256" in found.text("#view") and found.points() == 12
    found.pick("show", "memory")
    assert found.points() == 12
    for label in ("64", "256", "1024"):
        found.tick("keys", label, on=False)
    assert all("Nothing is selected" in found.view(name) for name in VIEWS)


def test_it_opens_on_a_decided_cell_and_shows_times_without_an_interval(made: Make, opened: Open) -> None:
    """The largest workload has none and is not first; picked, its points are there, all hollow but the fastest."""
    found = opened(alone_in_process_0(made(contenders=PAIR, heads=(1,)), 1024))
    assert "Ranking at n = 256, 1 head" in found.text("#view")
    found.page.locator("#view .chart").first.focus()
    for key in ("ArrowRight", "ArrowLeft", "Enter"):  # the first, and before it the last
        found.page.keyboard.press(key)
    assert "Ranking at n = 1024, 1 head" in found.text("#view") and found.points() == 2
    assert found.page.locator('#view .chart [aria-label="dot"][fill="none"] > *').count() == 1


#: the ground and the ink of texts in cells
CELLS = """all => all.map((text) => {
  const { x, y, width, height } = text.getBoundingClientRect();
  const found = document.elementsFromPoint(x + width / 2, y + height / 2);
  return [found.find((one) => one.tagName === 'rect'), text].map((one) => one && getComputedStyle(one).fill);
}).filter(([under]) => under)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_read_in_every_cell(scheme: str, made: Make, opened: Open) -> None:
    """Every backend's colour, decided and in a tie, at a contrast of 4.5."""
    names, heads = [*COLOURS], (1, 2, 4, 8)

    def seconds(name: str, one: Any) -> float:
        place = heads.index(one.heads) + 4 * (one.keys // 64 - 1)
        turn = (names.index(name) - place) % len(names)  # all but two are over budget
        return 9.0 if turn > 1 else 3e-4 if turn and one.dtype == "float32" else 1e-4

    costs = {name: partial(seconds, name) for name in names}
    lengths = tuple(range(64, 64 * (1 + len(names) // 4), 64))
    run = made(costs=costs, kernels={}, lengths=lengths, heads=heads, variants=TWO_OF_EACH)
    found = opened(run, color_scheme=scheme, height=2000)
    pairs = [
        ["#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", one)[:3]) for one in pair]
        for pair in found.page.eval_on_selector_all("#view [aria-label=text] text", CELLS)
    ]
    assert len(pairs) == 2 * len(names) and len({ground for ground, _ in pairs}) > 1.5 * len(names)
    assert min(contrast(*pair) for pair in pairs) >= 4.5


def test_two_runs_stand_side_by_side(made: Make, opened: Open) -> None:
    """Each with its own answer and heat map; times against times; what differs between their machines is marked."""
    one, other = made("here", contenders=PAIR), made("there", contenders=PAIR, seed=3)
    found = opened(one, replace(other, environment={**other.environment, "cpu": "Another Processor"}))
    assert found.text("#head").count("Use torch_sdpa") == 2
    assert "A: here" in found.view("winners") and "B: there" in found.view("winners")
    text = found.view("runs")
    assert all(said in text for said in ("Another Processor", "differs", "12 results in both", "no verdict"))
    assert found.points() == 12
    found.tick("run", "B: there", on=False)
    assert "No contender was measured on the same workload in both" in found.text("#view")


#: what a run may lack, and what the page then says
LACKING: dict[str, tuple[Callable[[Make], Run], str]] = {
    "empty": (lambda made: replace(made(complete=False), results=[]), "No verdict"),
    "one backend": (
        lambda made: made(contenders=("torch_sdpa",), baseline="torch_sdpa"),
        "Only torch_sdpa has",
    ),
    "above the ceiling": (lambda made: made(memory=False, ceiling_flops=1e6), "No verdict"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_whatever_a_run_lacks_the_page_is_true(kind: str, made: Make, opened: Open) -> None:
    """Every view is drawn or says why not."""
    make, said = LACKING[kind]
    found = opened(make(made))
    assert said in found.text("#head")
    assert all(found.view(name) for name in VIEWS)
