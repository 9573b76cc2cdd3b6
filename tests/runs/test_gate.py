"""The gate for two versions: what fails, what passes, and when there is no verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process_sets import TINY, latency, measured
from typed import status

from attnlab.backends.contender import Contender
from attnlab.errors import Unavailable
from attnlab.runs import gate as regression
from attnlab.runs.gate import STATUS, Gate, Kinds, Line, Margins, agreed, judged
from attnlab.stats.intervals import MARGIN
from attnlab.workload.result import Measurement, Outcome, Result

BASE, HEAD = ("threads", "1"), ("threads", "2")
DECLINED = Result("x", TINY, Outcome.DECLINED, "no masks")


def times(ratio: float, spread: float = 1e-3) -> Measurement:
    """The latency of six visits that differ a little."""
    return latency([[1e-3 * ratio * (1 + spread * (visit % 3 - 1))] * 4 for visit in range(6)])


def told(name: str, ratio: float, *further: Measurement, spread: float = 1e-3, **more: Any) -> Result:
    """The result of a side whose call takes `ratio` milliseconds."""
    peak = Measurement("peak_memory", "B", (2.0**20,))
    others = [one for one in further if one.quantity == "peak_memory"] or [peak]
    kept = [*others, *(one for one in further if one.quantity != "peak_memory")]
    return measured(name, times(ratio, spread), *kept, **{"kernel": "same", **more})


def line(
    head: Result, control: float = 1.0, margins: Margins | None = None, base: Result | None = None
) -> Line:
    """What the gate finds in one race, with `head` as HEAD."""
    sides = [base or told("a", 1.0), (base and replace(base, contender="a#2")) or told("a#2", control)]
    return judged("a", [*sides, replace(head, contender="b")], margins or Margins())


def whats(found: Line) -> list[str]:
    return [one.what for one in found.reasons]


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.02, 1.05, 1.5])
def test_a_slow_down_beyond_the_margin_fails_and_nothing_else(ratio: float) -> None:
    """A gate that passes also reports the largest slow-down that it does not exclude."""
    one, found = line(told("b", ratio)), Kinds.PASSED if ratio < 1.03 else Kinds.REGRESSION
    assert one.found is found and one.ratio == pytest.approx(ratio)
    whole = Gate("x", "y", Margins(), (one,))
    if found is Kinds.PASSED:
        assert whole.unseen is not None
        assert max(0.0, ratio - 1) <= whole.unseen < max(0.0, ratio - 1) + MARGIN
        assert one.faster == (ratio < 1)
    else:
        assert whats(one) == ["time"] and whole.unseen is None


def test_where_base_is_told_apart_from_itself_there_is_no_verdict() -> None:
    """This holds however slow HEAD is."""
    one = line(told("b", 1.5), control=1.1)
    assert (one.found, whats(one), STATUS[one.found]) == (Kinds.NO_VERDICT, ["control"], 3)


def test_a_race_that_could_not_have_seen_a_slow_down_is_no_verdict() -> None:
    uneven = told("b", 1.0, spread=0.2)
    assert whats(line(uneven)) == ["unseen"]
    assert line(uneven, margins=Margins(unseen=100.0)).found is Kinds.PASSED
    one_visit = measured("b", latency([[1e-3] * 2]))
    assert whats(line(one_visit, margins=Margins(kernel_may_change=True))) == ["no interval"]


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.CRASHED, Outcome.DECLINED, Outcome.UNAVAILABLE])
def test_a_new_outcome_fails(outcome: Outcome) -> None:
    """If HEAD is not installed, nothing is known, and there is no verdict."""
    one = line(Result("b", TINY, outcome, "why"))
    expected = Kinds.NO_VERDICT if outcome is Outcome.UNAVAILABLE else Kinds.REGRESSION
    assert (one.found, whats(one)) == (expected, ["outcome"])
    assert one.reasons[0].head == f"{outcome}: why"


def test_what_both_decline_is_no_regression() -> None:
    """If only BASE fails, nothing can be compared, and there is no verdict."""
    assert line(DECLINED, base=DECLINED).found is Kinds.PASSED
    assert line(told("b", 1.0), base=DECLINED).found is Kinds.NO_VERDICT


setup = partial(Measurement, "setup", "s")


@pytest.mark.parametrize(
    ("head", "margins", "found"),
    [
        (told("b", 1.0, Measurement("peak_memory", "B", (2.0**24,))), Margins(), ["memory"]),
        (told("b", 1.0, Measurement("peak_memory", "B", (2.0**24,))), Margins(memory=2e4), []),
        (told("b", 1.0, kernel="other"), Margins(), ["kernel"]),
        (told("b", 1.0, kernel="other"), Margins(kernel_may_change=True), []),
        (told("b", 1.0, setup((1.0, 1.1))), Margins(), ["set-up"]),
        (told("b", 1.0, setup((1.0, 1.1))), Margins(setup=100.0), []),
        (told("b", 1.0, setup((0.01, 1.1))), Margins(), []),
        (told("b", 1.5, kernel="other"), Margins(), ["time", "kernel"]),
    ],
)
def test_memory_kernel_and_set_up_have_margins_of_their_own(head, margins, found) -> None:
    """Set-up counts only if every process of HEAD takes longer than all of BASE."""
    one = line(head, margins=margins, base=told("a", 1.0, setup((0.02, 0.03))))
    assert whats(one) == found and not one.no_memory


def test_a_regression_is_what_two_races_agree_on() -> None:
    slow, other, same = line(told("b", 1.1)), line(told("b", 1.0, kernel="other")), line(told("b", 1.0))
    unclear = line(told("b", 1.1), control=1.2)
    assert agreed(slow, slow).found is Kinds.REGRESSION
    assert agreed(slow, same).found is Kinds.PASSED and agreed(slow, same).unconfirmed
    assert whats(agreed(slow, other)) == ["one race", "kernel"]
    assert agreed(unclear, slow).found is Kinds.NO_VERDICT and agreed(slow, unclear).found is Kinds.NO_VERDICT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file here that is always full")
def test_the_verdict_is_printed_though_it_cannot_be_appended(monkeypatch, capsys) -> None:
    """The race took long, and exit status 1 would mean a regression."""
    found = Gate("main", "HEAD", Margins(), (line(told("b", 1.0)),))
    monkeypatch.setattr(regression, "gate", lambda *sides, **how: found)
    typed = "gate numpy==2.3 numpy==2.4 --backends numpy_blocked --summary /dev/full"
    assert status(*typed.split()) == 0
    shown = capsys.readouterr()
    assert "No regression" in shown.out and "/dev/full cannot be written" in shown.err


class Scripted:
    """Stands in for a conductor: a call takes 1 ms, or 1.2 ms for naive_loop with two threads."""

    started: list[list[str]]
    interrupted = False

    def __init__(self, contenders: Sequence[Contender], **options: Any) -> None:
        self.started.append([one.name for one in contenders])
        self.contenders = contenders

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None: ...

    def race(self, workload: Any, names: Sequence[str], **how: Any) -> list[Result]:
        three = [one for one in self.contenders if one.name in names]
        slow = [one.backend == "naive_loop" and one.threads == 2 for one in three]
        return [
            told(one.name, 1.2 if late else 1.0, workload=workload)
            for one, late in zip(three, slow, strict=True)
        ]

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        return {}


@pytest.fixture
def conductor() -> Callable[..., Any]:
    Scripted.started = []
    return Scripted


def test_only_what_did_not_pass_is_raced_again(conductor: Any) -> None:
    """A race has three contenders, and one conductor makes all races of a pass."""
    found = regression.gate(BASE, HEAD, ["numpy_vectorized", "naive_loop"], [TINY], conductor=conductor)
    assert [(one.backend, one.found) for one in found.lines] == [
        ("naive_loop", Kinds.REGRESSION),
        ("numpy_vectorized", Kinds.PASSED),
    ]
    assert [len(there) for there in conductor.started] == [6, 3]
    plain = json.loads(msgspec.json.encode(found.to_json()))
    assert (plain["found"], plain["exit_status"], plain["unseen"]) == ("regression", 1, None)


def test_an_interrupted_gate_tells_what_was_raced_and_gives_no_verdict(conductor: Any) -> None:
    class Interrupted(Scripted):
        def race(self, workload: Any, names: Sequence[str], **how: Any) -> list[Result]:
            self.interrupted = True
            return super().race(workload, names)

    found = regression.gate(BASE, HEAD, ["naive_loop", "numpy_blocked"], [TINY], conductor=Interrupted)
    assert {(one.found, *whats(one)) for one in found.lines} == {(Kinds.NO_VERDICT, "interrupted")}
    assert sorted(one.ratio > 1 for one in found.lines) == [False, True] and len(conductor.started) == 1


def test_a_side_that_is_not_to_be_had_is_told_before_anything_is_raced(tmp_path, conductor) -> None:
    nowhere = ("python", str(tmp_path / "nowhere"))
    for sides in ((BASE, nowhere), (nowhere, BASE)):
        with pytest.raises(Unavailable, match="no such file"):
            regression.gate(*sides, ["numpy_vectorized"], [TINY], conductor=conductor)
    assert conductor.started == []
