"""What the page in a real browser says first, and of whatever a run lacks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from opened_page import Make, Open

from attnlab import units
from attnlab.judge.ranking import Sure
from attnlab.problem.result import Outcome
from attnlab.report.analysis import analyse
from attnlab.runs.store import Run


def test_the_first_screen_answers(made: Make, opened: Open) -> None:
    """Which, how much faster, how sure and how big, as the analysis has them, before anything is scrolled."""
    run = made()
    analysis, found = analyse(run), opened(run)
    text = found.text("#answer")
    cells = analysis.cells
    decided = sum(one.won.sure is Sure.DECIDED for one in analysis.won)
    assert "torch_sdpa" in text and f"{decided} of {len(cells)} decided" in text
    largest = max(cells, key=lambda cell: (cell.workload.keys, cell.workload.heads))
    assert units.bytes_text(largest.measured["torch_sdpa"].peak_bytes or 0) in text
    leads = [one.won.ahead for one in analysis.won if one.won.sure is Sure.DECIDED]
    ratios = [lead.ratio for lead in leads if lead is not None]
    assert f"{units.number_text(min(ratios))} to {units.number_text(max(ratios))} ×" in text
    over = largest.won.over_baseline
    assert over is not None and over.low is not None and over.high is not None
    assert (
        f"{units.number_text(over.ratio)} [{units.number_text(over.low)}, {units.number_text(over.high)}] ×"
        in text
    )
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
