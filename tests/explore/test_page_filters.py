"""What the filters and choices of the page change, in a real browser: figures, rounds, two runs."""

from __future__ import annotations

import re
from dataclasses import replace

from opened_page import TWO_OF_EACH, Make, Open, points
from page_blocks import block

from attnlab.report.explore import render
from attnlab.report.page_packed import packed


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
