"""The page in a real browser, offline and from disk: what is seen, what the filters change, what hostile text does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from opened_page import Opened
from page_blocks import block

from attnlab.contract import units
from attnlab.contract.result import Outcome
from attnlab.explore import render
from attnlab.explore.packed import packed
from attnlab.program.store import Run
from attnlab.report.analysis import analyse
from attnlab.report.answer import answer_of
from attnlab.report.winners import choose, every_place
from attnlab.statistics.winner import Sure, Winner

Make = Callable[..., Run]
Open = Callable[..., Opened]
PHONE = {"width": 375, "height": 812, "has_touch": True, "is_mobile": True}
TWO_OF_EACH = (
    {"dtype": "float32"},
    {"dtype": "bfloat16", "direction": "training"},
)


def points(page: Any) -> int:
    """Marks of measured points in the charts of the view."""
    return int(page.locator('#view .chart [aria-label="dot"] > *').count())


# -- loading -----------------------------------------------------------------------------------------


def test_every_view_is_drawn_without_complaint(made: Make, opened: Open) -> None:
    """From disk and offline; nothing is refused by the policy, and nothing moves by itself."""
    found = opened(made())
    texts = found.views()
    assert set(texts) == {"winners", "figures", "rounds", "runs", "table"}
    assert all(len(one) > 200 for one in texts.values())
    found.harmless()
    assert found.page.evaluate("seen.moved") < 0.1


def test_the_policy_is_in_force(made: Make, opened: Open) -> None:
    """A script that is not the page's own does not run: so that the tests beside this one can fail."""
    found = opened(made())
    found.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert found.page.evaluate("window.ran") is None
    assert found.page.evaluate("seen.refused").__len__() == 1
    with pytest.raises(AssertionError):
        found.harmless()


def test_a_browser_that_cannot_unpack_the_data_says_so(made: Make, opened: Open) -> None:
    """In one line, and nothing else is shown."""
    found = opened(made(), without="DecompressionStream")
    assert found.text("body").startswith("This browser cannot unpack the data of this page")
    assert len(found.text("body").splitlines()) == 1
    found.harmless()


@pytest.mark.parametrize("options", [PHONE, {"width": 320, "height": 600}, {"width": 1280}])
def test_no_view_is_wider_than_the_screen(options: dict[str, Any], made: Make, opened: Open) -> None:
    """Tables that are wider scroll by themselves."""
    found = opened(made(variants=TWO_OF_EACH), **options)
    for name in found.views():
        found.view(name)
        wide, screen = found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= screen, name
    assert found.page.evaluate("seen.moved") < 0.1


def luminance(colour: str) -> float:
    """Of ``rgb(r, g, b)``, from 0 to 1, roughly."""
    red, green, blue = (int(one) / 255 for one in re.findall(r"\d+", colour)[:3])
    return 0.2 * red + 0.7 * green + 0.1 * blue


def test_a_dark_screen_has_a_dark_page(made: Make, opened: Open) -> None:
    """Ground, text, and the baseline's curve, which is black in figures on white."""
    style = "getComputedStyle(document.body)"
    found = opened(made(), color_scheme="dark")
    assert luminance(found.page.evaluate(f"{style}.backgroundColor")) < 0.15
    assert luminance(found.page.evaluate(f"{style}.color")) > 0.75
    label = found.page.locator('[data-field="backend"] label').filter(has_text="torch_eager").first
    colours = [label.locator("path").get_attribute("fill")]
    found.page.emulate_media(color_scheme="light")
    # the page hears of it at its next frame
    label.locator(f'path:not([fill="{colours[0]}"])').wait_for()
    colours.append(label.locator("path").get_attribute("fill"))
    dark, light = (int(one[1:3], 16) for one in colours)
    assert dark > 180 and light < 80
    found.harmless()


# -- what it says ------------------------------------------------------------------------------------


def test_the_first_screen_answers(made: Make, opened: Open) -> None:
    """Which, how much faster, how sure and how big, as the analysis has them, before anything is scrolled."""
    run = made()
    analysis, found = analyse(run), opened(run)
    text = found.text("#answer")
    cells = analysis.cells
    decided = sum(one.won.sure is Sure.DECIDED for one in every_place(analysis))
    assert "torch_sdpa" in text and f"{decided} of {len(cells)} decided" in text
    largest = max(cells, key=lambda cell: (cell.workload.keys, cell.workload.heads))
    assert units.bytes_text(largest.measured["torch_sdpa"].peak_bytes or 0) in text
    standing = largest.standing("torch_sdpa")
    assert standing is not None and standing.against_baseline is not None
    assert f"{units.figures(1 / standing.against_baseline.ratio)} [" in text
    box = found.page.locator("#answer").bounding_box()
    assert box["y"] + box["height"] < 800


def test_the_heat_map_names_every_winner(made: Make, opened: Open) -> None:
    """And picking a cell shows that workload's ranking."""
    run = made()
    analysis, found = analyse(run), opened(run)
    labels = found.page.locator('#view .chart >> nth=0 >> [aria-label="text"] text').all_text_contents()
    firsts = [cell.ranking.first for cell in analysis.cells if cell.ranking]
    assert len(labels) == len(firsts)
    for standings in firsts:
        assert any("".join(one.split()).startswith(standings[0].contender[:6]) for one in labels)
    found.page.locator('#view .chart >> nth=0 >> [aria-label="cell"] rect').first.click(force=True)
    assert "Ranking at n = 64, 1 head" in found.text("#view")


def test_pointing_at_a_point_tells_all_of_it(made: Make, opened: Open) -> None:
    """The figure, its interval, the kernel that ran and the settings."""
    run = made(contenders=("torch_eager", "torch_sdpa"), heads=(4,))
    found = opened(run)
    found.page.click("#tab-figures")
    chart = found.page.locator("#view .chart").first
    chart.scroll_into_view_if_needed()
    dot = chart.locator('[aria-label="dot"]').first.locator("path").last.bounding_box()
    found.page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    told = found.text("#tip")
    result = next(one for one in run.results if one.contender == "torch_sdpa" and one.workload.keys == 1024)
    assert result.latency is not None
    assert f"{units.seconds_text(result.latency.median)} [" in told
    for words in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "threads: as many as the library takes: 2",
        "torch 2.11.0",
    ):
        assert words in told
    assert re.search(r"\[[\d.]+, [\d.]+\] × as fast as torch_eager: faster", told)
    found.page.mouse.move(2, 2)
    assert not found.page.locator("#tip").is_visible()


def test_times_are_written_as_in_the_report(made: Make, opened: Open) -> None:
    """One way of writing units in all faces."""
    run = made()
    text = opened(run).view("table")
    for one in run.results:
        if one.latency is not None and "#" not in one.contender:
            assert units.seconds_text(one.latency.median) in text


TWINS = ("torch_sdpa_flash", "torch_sdpa")
RACES: dict[str, dict[str, Any]] = {
    "nothing but two names of one kernel": {"contenders": TWINS, "baseline": "torch_sdpa"},
    "two names of one kernel, one of them the baseline": {
        "contenders": ("torch_eager", *TWINS),
        "baseline": "torch_sdpa",
    },
    "two names and a slower one": {"contenders": (*TWINS, "torch_eager"), "baseline": "torch_eager"},
    "one process": {"contenders": (*TWINS, "torch_eager"), "baseline": "torch_eager", "processes": 1},
    "all alike": {
        "costs": dict.fromkeys(("torch_eager", "torch_sdpa_math", "numpy_blocked"), lambda one: 1e-3),
        "contenders": ("torch_eager", "torch_sdpa_math", "numpy_blocked"),
        "noise": 0.3,
    },
}
#: the report's words for how sure a first place is, and those of the page
SURE = {
    Sure.DECIDED: "decided",
    Sure.TIE: "not told apart",
    Sure.ALONE: "nothing else was measured here",
    Sure.NO_INTERVAL: "no interval",
}


@pytest.mark.parametrize("race", RACES)
def test_report_and_page_say_the_same_of_the_first_place(race: str, made: Make, opened: Open) -> None:
    """Who it is, how sure, how far ahead, and whom to choose where one is to do for all."""
    run = made(heads=(4,), **RACES[race])
    analysis, found = analyse(run), opened(run)
    chosen = choose(analysis, every_place(analysis))
    assert chosen is not None and chosen.name_in_code in answer_of(analysis).line
    assert found.page.locator("#answer .card >> nth=0 >> .big").inner_text() == chosen.name
    found.pick("The number says how many times as fast as", "next")
    found.page.locator("#view .chart").first.focus()
    for one in every_place(analysis):
        found.page.keyboard.press("ArrowRight")
        names, texts = (found.page.locator(f"#tip {tag}").all_inner_texts() for tag in ("dt", "dd"))
        told = dict(zip(names, texts, strict=True))
        assert told["first"] == ", ".join(one.won.first)
        assert told["verdict"].startswith(SURE[one.won.sure])
        assert told.get("ahead") == ahead(one.won)
    found.harmless()


def ahead(won: Winner) -> str | None:
    """How far the winner is ahead of the next implementation, as the page writes it."""
    lead = won.ahead
    if lead is None:
        return None
    span = "" if lead.low is None or lead.high is None else f" {units.interval(lead.low, lead.high)}"
    return f"{units.ratio(lead.ratio)}{span} × as fast as {lead.over}"


# -- filters -----------------------------------------------------------------------------------------


def test_filters_change_what_is_shown(made: Make, opened: Open) -> None:
    """By backend, length, heads, number format and direction; ticked again, all is back."""
    run = made(variants=TWO_OF_EACH, contenders=("torch_eager", "torch_sdpa", "numpy_vectorized"))
    found = opened(run)
    whole = found.view("table")
    count = int(re.findall(r"(\d+) results", whole)[0])
    assert count == len(run.results)
    for name, label, left in (
        ("backend", "torch_sdpa", 2 / 3),
        ("keys", "256", 2 / 3),
        ("heads", "4", 1 / 2),
        ("dtype", "bfloat16", 1 / 2),
        ("direction", "training", 1 / 2),
    ):
        found.tick(name, label, on=False)
        assert f"{round(count * left)} results" in found.text("#counted"), name
        found.tick(name, label, on=True)
        assert f"{count} results" in found.text("#counted")
    assert found.text('[data-field="device"]').split() == ["device", "CPU"]
    found.harmless()


def test_figures_follow_filters_axes_and_scales(made: Make, opened: Open) -> None:
    """A point for each result; panels for what the axis leaves; ticks that are even on a linear axis."""
    run = made(contenders=("torch_eager", "torch_sdpa", "torch_sdpa_cudnn"))
    found = opened(run)
    text = found.view("figures")
    assert "1 head" in text and "4 heads" in text and points(found.page) == 12
    found.tick("backend", "torch_sdpa", on=False)
    assert points(found.page) == 6
    found.tick("keys", "64", on=False)
    assert points(found.page) == 4
    found.pick("against", "heads")
    assert "n = 256" in found.text("#view") and points(found.page) == 4
    for name in ("memory", "error", "share", "speed"):
        found.pick("show", name)
        assert points(found.page) == 4, name
    found.pick("against", "time")
    assert points(found.page) == 4
    before = found.page.locator('[aria-label="y-axis tick label"]').first.text_content()
    found.page.get_by_label("y logarithmic").set_checked(False)
    assert found.page.locator('[aria-label="y-axis tick label"]').first.text_content() != before
    found.harmless()


def test_nothing_selected_is_said(made: Make, opened: Open) -> None:
    """In every view."""
    found = opened(made(heads=(4,)))
    for label in ("64", "256", "1024"):
        found.tick("keys", label, on=False)
    assert "Nothing is selected" in found.text("#answer")
    for text in found.views().values():
        assert "Nothing is selected" in text
    found.harmless()


# -- rounds ------------------------------------------------------------------------------------------


def test_rounds_are_all_there_with_the_disturbed_marked(made: Make, opened: Open) -> None:
    """One point a round; every fifteen rounds of a made-up run hold one that was disturbed."""
    run = made(lengths=(256,), heads=(1,), contenders=("torch_eager", "torch_sdpa"))
    found = opened(run)
    text = found.view("rounds")
    assert text.count("15 rounds, 1 disturbed") == 2
    assert points(found.page) == 30
    crosses = found.page.locator(
        '#view [aria-label="dot"] path[stroke-linecap], #view [aria-label="dot"][fill="none"] > *'
    )
    assert crosses.count() == 2
    for scale in ("same", "relative", "own"):
        found.pick("y axis", scale)
        assert points(found.page) == 30
    found.harmless()


def test_thinned_rounds_are_counted_on_the_page(made: Make, opened: Open) -> None:
    """How many of how many are shown; and where none fits, where they are."""
    run = made(lengths=(256,), heads=(1,), contenders=("torch_eager", "torch_sdpa"), rounds=400)
    page = render([run])
    whole, rounds = len(page.encode()), len(block(page, "rounds"))
    found = opened(run, limit=whole - rounds // 2)
    found.view("rounds")
    told = re.findall(r"This page holds (\d+) of 800 rounds: one of (\d+) of each", found.text("#view"))
    ((shown, every),) = [tuple(map(int, one)) for one in told]
    assert shown == points(found.page) == 2 * -(-400 // every) and every > 1
    found = opened(run, limit=whole - rounds + len(packed({"all": 800, "shown": 0, "every": 0})))
    assert "The rounds stand in results.jsonl of the run" in found.view("rounds")
    found.harmless()


# -- two runs ----------------------------------------------------------------------------------------


def test_two_runs_stand_side_by_side(made: Make, opened: Open) -> None:
    """Each with its own answer and heat map; times against times; what differs between their machines is marked."""
    one, other = (
        made("here", contenders=("torch_eager", "torch_sdpa")),
        made("there", contenders=("torch_eager", "torch_sdpa"), seed=3),
    )
    other = replace(other, environment={**other.environment, "cpu": "Another Processor"})
    found = opened(one, other)
    assert found.text("#answer").count("How sure") == 2
    assert "A: here" in found.view("winners") and "B: there" in found.view("winners")
    text = found.view("runs")
    assert "Another Processor" in text and "differs" in text and "12 results in both" in text
    assert "no verdict" in text
    assert points(found.page) == 12
    found.tick("run", "B: there", on=False)
    assert found.text("#answer").count("How sure") == 1
    assert "No contender was measured on the same workload in both" in found.text("#view")
    found.harmless()


# -- keyboard ----------------------------------------------------------------------------------------


def test_everything_is_reached_by_keyboard(made: Make, opened: Open) -> None:
    """Tab goes through filters, tabs and charts; arrows through tabs and points; Enter picks; Escape hides."""
    found = opened(made(contenders=("torch_eager", "torch_sdpa")))
    reached = set()
    for _ in range(60):
        found.page.keyboard.press("Tab")
        reached.add(
            found.page.evaluate(
                "(document.activeElement.closest('[data-field]')?.dataset.field) ?? document.activeElement.className"
                " ?? document.activeElement.tagName"
            )
            or found.page.evaluate(
                "document.activeElement.getAttribute('role') ?? document.activeElement.tagName"
            )
        )
    assert {"backend", "heads", "keys", "tab", "chart", "skip", "SELECT"} <= reached
    found.page.locator("#view .chart").first.focus()
    found.page.keyboard.press("ArrowRight")
    first = found.text("#tip")
    found.page.keyboard.press("ArrowRight")
    assert found.text("#tip") != first
    found.page.keyboard.press("Enter")
    assert "Ranking at n = 256, 1 head" in found.text("#view")
    found.page.keyboard.press("Escape")
    assert not found.page.locator("#tip").is_visible()
    found.page.focus("#tab-winners")
    found.page.keyboard.press("ArrowRight")
    assert found.page.locator("#tab-figures").get_attribute("aria-selected") == "true"
    found.harmless()


def test_every_control_has_a_name(made: Make, opened: Open) -> None:
    """For whoever hears the page."""
    found = opened(made())
    for name in found.views():
        found.view(name)
        unnamed = found.page.eval_on_selector_all(
            "input, select, button, .chart, [role=region]",
            "all => all.filter((one) => !(one.labels?.[0]?.innerText || one.textContent.trim()"
            " || one.getAttribute('aria-label'))).map((one) => one.outerHTML)",
        )
        assert unnamed == [], name


def test_a_finger_on_a_chart_tells_of_the_point_under_it(made: Make, opened: Open) -> None:
    """And one beside it puts that away; on a heat map it picks the workload."""
    found = opened(made(), **PHONE)
    found.page.tap("#tab-figures")
    chart = found.page.locator("#view .chart").first
    chart.scroll_into_view_if_needed()
    dot = chart.locator('[aria-label="dot"] path').nth(4).bounding_box()
    found.page.touchscreen.tap(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    assert "peak memory" in found.text("#tip")
    found.page.touchscreen.tap(5, 5)
    assert not found.page.locator("#tip").is_visible()
    found.page.tap("#tab-winners")
    found.page.locator('#view .chart >> nth=0 >> [aria-label="cell"] rect').first.tap(force=True)
    assert "Ranking at n = 64, 1 head" in found.text("#view")


# -- text from elsewhere -----------------------------------------------------------------------------

HOSTILE = "<script>window.ran=1</script>"
WORSE = "</script><img src=x onerror=window.ran=2>"


def test_hostile_text_stays_text(made: Make, opened: Open) -> None:
    """Names, reasons, kernels, settings, machine and command are shown as they were written, and do nothing."""
    costs = {HOSTILE: lambda one: 1e-5 + 1e-9 * one.pairs, "torch_eager": lambda one: 2e-5 + 2e-9 * one.pairs}
    run = made(
        costs=costs,
        contenders=(HOSTILE, "torch_eager", "refuses"),
        kernels={HOSTILE: WORSE},
        baseline="torch_eager",
    )
    results = [replace(one, reason=one.reason and WORSE) for one in run.results]
    facts = {"versions": {WORSE: HOSTILE}, "modes": {HOSTILE: WORSE}}
    environment = {**run.environment, "cpu": WORSE, "contenders": {HOSTILE: facts}}
    found = opened(replace(run, results=results, environment=environment, command=WORSE, started=HOSTILE))
    texts = found.views()
    assert HOSTILE in found.text("#answer") and WORSE in found.text("#about")
    assert HOSTILE in texts["table"] and WORSE in texts["table"]
    assert texts["runs"].count(WORSE) >= 3
    found.tick("backend", "refuses", on=True)
    assert WORSE in found.view("table")
    assert found.page.evaluate("window.ran") is None
    assert found.page.locator("img").count() == 0
    found.harmless()


# -- runs with little in them ------------------------------------------------------------------------


def little(kind: str, made: Make) -> Run:
    """A run of that kind."""
    if kind == "empty":
        run = made(complete=False)
        return replace(run, results=[])
    if kind == "interrupted":
        run = made(complete=False)
        return replace(run, results=run.results[: len(run.contenders) * 2])
    if kind == "one backend":
        return made(contenders=("torch_sdpa",), baseline="torch_sdpa")
    if kind == "one length":
        return made(lengths=(64,), heads=(1,))
    if kind == "all wrong":
        return made(contenders=("torch_sdpa", "torch_eager"), wrong=("torch_sdpa", "torch_eager"))
    if kind == "one process":
        return made(processes=1)
    return made(memory=False, ceiling_flops=1e6)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty", "Nothing was measured here"),
        ("interrupted", "2 of 2 decided"),
        ("one backend", "0 of 6 decided"),
        ("one length", "1 of 1 decided"),
        ("all wrong", "results: wrong 12"),
        ("one process", "0 of 6 decided"),
        ("above the ceiling", "not believed"),
    ],
)
def test_whatever_a_run_lacks_the_page_is_true(kind: str, said: str, made: Make, opened: Open) -> None:
    """Every view is drawn or says why not."""
    run = little(kind, made)
    found = opened(run)
    assert said in found.text("#answer")
    if not run.complete:
        assert "This run was interrupted" in found.page.locator("#warnings").text_content()
    assert all(found.views().values())
    measured = any(one.outcome is Outcome.MEASURED for one in run.results)
    if not measured:
        assert "Nothing was measured: there is nothing to draw." in found.view("figures")
    found.harmless()
