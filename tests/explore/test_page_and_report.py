"""Report and page say the same: one winner, as sure, as far ahead."""

from __future__ import annotations

from typing import Any

import pytest
from opened_page import Make, Open

from attnlab import units
from attnlab.judge.analysis import choose
from attnlab.judge.ranking import Sure, Winner
from attnlab.report.analysis import analyse
from attnlab.report.answer import answer_of

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
    chosen = choose(analysis.won, analysis.names)
    assert chosen is not None and f"`{chosen.name}`" in answer_of(analysis).line
    assert found.page.locator("#answer .card >> nth=0 >> .big").inner_text() == chosen.name
    found.pick("The number says how many times as fast as", "next")
    found.page.locator("#view .chart").first.focus()
    for one in analysis.won:
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
