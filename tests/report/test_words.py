"""What commands print beside a report: the direction of each speedup, and what has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from attnlab.race.compare import Comparison
from attnlab.report import comparison_text
from attnlab.runs.store import Run
from attnlab.stats.intervals import verdicts_against
from attnlab.workload.result import Outcome, Result

Make = Callable[..., Run]
COSTS = {"a": lambda w: 2e-4, "b": lambda w: 1e-4, "c": lambda w: 8e-4, "d": lambda w: 2e-4}
ONE: dict[str, Any] = {"lengths": (256,), "heads": (1,), "rounds": 30, "noise": 1e-3, "ceiling_flops": 1e18}


def told(pattern: str, text: str) -> float:
    """The number that the pattern finds."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def compared(run: Run, *further: Result, baseline: str = "a") -> Comparison:
    results, workload = (*run.results, *further), run.results[0].workload
    verdicts = verdicts_against(results, baseline)
    return Comparison(workload, baseline, results, verdicts, 5, command="attnlab compare a b")


def test_a_race_says_which_is_faster_and_by_how_much(made: Make) -> None:
    run = made(costs=COSTS, **ONE)
    missing = Result("e", run.results[0].workload, Outcome.UNAVAILABLE, "no library")
    text = comparison_text(compared(run, missing), chosen="of lengths the middle one")
    assert told(r"\*\*`b` is ([\d.]+)× faster \[.*\] than `a`", text) == pytest.approx(2, rel=0.02)
    assert told(r"\*\*`a` is ([\d.]+)× faster \[.*\] than `c`", text) == pytest.approx(4, rel=0.02)
    assert "`d` and `a` are equally fast" in text and "attnlab compare a b" in text
    assert "- `e`: unavailable. no library\n" in text and "- of lengths the middle one\n" in text
    assert told(r"\| `b` \| [\d.]+ µs \| ([\d.]+) \[", text) == pytest.approx(2, rel=0.02)
    brief = comparison_text(compared(run, missing), quiet=True)
    assert "|" not in brief and "faster" in brief
