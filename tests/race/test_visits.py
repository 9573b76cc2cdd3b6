"""A visit: what each contender is asked, which rounds count, and that one contender can fail without the others."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import pytest
from scripted import QUICK, SMALL, Scripted, conducted, noisy

from attnlab.processes import Failed
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import INSTRUMENTS
from attnlab.stats.intervals import Kind, verdicts_against
from attnlab.workload.result import Outcome, Result, merged
from attnlab.workload.workload import Workload

A, B, C = "numpy_vectorized", "numpy_blocked", "naive_loop"


def one_visit(conductor: Conductor, **how: Any) -> dict[str, Result]:
    """The results of a visit, by contender."""
    with conductor:
        return {one.contender: one for one in conductor.visit(SMALL, **how)}


def test_a_visit_times_each_contender_in_every_round_on_inputs_of_its_own() -> None:
    """Turns last at least 15 ms, after a call that is not timed. Only one contender runs at a time."""
    log: list[tuple[str, str]] = []
    found = one_visit(conducted({A: Scripted(1e-3), B: Scripted(4e-3)}, log=log), number=3)
    for name, calls in ((A, 15.0), (B, 4.0)):
        result, latency = found[name], found[name].latency
        assert result.outcome is Outcome.MEASURED and latency is not None, result.reason
        assert latency.samples == pytest.approx([1e-3 if name == A else 4e-3] * 4)
        assert list(latency.columns["round"]) == [3000.0, 3001.0, 3002.0, 3003.0]
        assert set(latency.columns["visit"]) == {3.0}
        assert set(latency.columns["iterations"]) <= {calls, calls + 1}
        assert not latency.disturbed_rounds and all(one > 1.7e9 for one in latency.columns["moment"])
        assert result.setup_seconds == pytest.approx(0.25 + 0.75 - latency.median)
        assert result.accuracy is not None and result.accuracy.passed and result.kernel == "scripted"
    turns = [name for name, op in log if op == "turn"]
    assert turns in ([A, B, B, A] * 2, [B, A, A, B] * 2)
    assert [op for name, op in log if name == A][-13:] == [*["refresh", "turn", "reveal"] * 4, "end"]


def test_how_many_calls_a_turn_has_is_drawn() -> None:
    """With a fixed number, a backend that computes only in every second call might never be caught."""
    limits = replace(QUICK, rounds=64, visit_seconds=100.0)
    latency = one_visit(conducted({A: Scripted(1e-3)}, limits=limits))[A].latency
    assert latency is not None and set(latency.columns["iterations"]) == {15.0, 16.0}


def test_a_slow_contender_has_fewer_rounds_which_all_share() -> None:
    """Each of its rounds is also a round of all others, so that times can be compared in pairs."""
    limits = replace(QUICK, rounds=24, visit_seconds=4.0)
    found = one_visit(conducted({A: Scripted(1e-3), B: Scripted(0.15)}, limits=limits))
    slow, quick = found[B].latency, found[A].latency
    assert slow is not None and quick is not None
    assert len(quick.samples) == 12 and list(slow.by_round) == [0, 4, 8]
    assert set(slow.columns["iterations"]) == {1.0} and set(slow.columns["opening_s"]) == {0.0}


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (Scripted(stale=True), Outcome.WRONG, "the output of a timed call is not that of its inputs"),
        (Scripted(spoils=lambda _, array: 1.5 * array), Outcome.WRONG, ""),
        (Scripted(fails={("turn", 2): Failed("crashed", "killed", "tail")}), Outcome.CRASHED, "killed"),
        (Scripted(fails={"reveal": Failed("wrong", "no array")}), Outcome.WRONG, "no array"),
        (Scripted(fails={("turn", 1): Failed("timed_out", "late")}), Outcome.TIMED_OUT, "late"),
        (Scripted(fails={"attest": Failed("crashed", "killed", "tail")}), Outcome.CRASHED, "killed"),
        (Scripted(fails={"prepare": Failed("memory", "none left")}), Outcome.OVER_BUDGET, "none left"),
        (Scripted(fails={"declines": Failed("declined", "no masks")}), Outcome.DECLINED, "no masks"),
        (Scripted(fails={"load": Failed("unavailable", "no such")}), Outcome.UNAVAILABLE, "no such"),
        (Scripted(2.0), Outcome.OVER_BUDGET, "a call takes 2.00 s; limit: 500 ms"),
        (Scripted(memory={"scores": 1e9}), Outcome.OVER_BUDGET, "its inputs alone"),
    ],
    ids=range(11),
)
def test_what_goes_wrong_ends_one_contender_with_a_reason(script, outcome, said) -> None:
    """The other contender continues. The failed one is not asked again in the next visit."""
    with conducted({A: script, B: Scripted()}) as conductor:
        first = {one.contender: one for one in conductor.visit(SMALL)}
        again = [one.contender for one in conductor.visit(SMALL, number=1)]
    assert first[A].outcome is outcome and said in (first[A].reason or ""), first[A].reason
    assert first[B].outcome is Outcome.MEASURED and again == [B]


def test_a_call_that_takes_long_in_a_later_visit_excludes_nobody() -> None:
    """The first visit was fast enough, so the machine has become slower. The contender stays in the race."""
    with conducted({A: Scripted(lambda visit, _: 2.0 if visit else 0.4)}) as conductor:
        assert [conductor.visit(SMALL, number=at)[0].outcome for at in (0, 1)] == [Outcome.MEASURED] * 2


def test_where_the_fastest_takes_long_a_call_may_take_twice_as_long() -> None:
    """Up to five seconds. So a large size is measured, and contenders far behind the fastest are left out."""
    for seconds, measured in (((2.0, 3.9, 4.1), 2), ((4.0, 6.0), 1)):
        with conducted(dict(zip((A, B, C), map(Scripted, seconds), strict=False))) as conductor:
            found = [one.outcome for one in conductor.visit(SMALL)]
        assert found == [*[Outcome.MEASURED] * measured, Outcome.OVER_BUDGET]


def test_a_small_call_that_tells_nothing_of_itself_tells_how_long_the_others_may_take() -> None:
    """One of 64 heads takes 15, 25 and 60 ms. The 15 ms may be all overhead, but 64 times as much is an upper bound."""
    seconds, wide = (0.015, 0.025, 0.06), SMALL.with_(heads=64, kv_heads=64, queries=128, keys=128)
    with conducted(
        {name: Scripted(one / 128) for name, one in zip((A, B, C), seconds, strict=True)}
    ) as conductor:
        found = [one.outcome for one in conductor.visit(wide)]
    assert found == [Outcome.MEASURED, Outcome.MEASURED, Outcome.OVER_BUDGET]


def test_a_measured_call_tells_what_a_larger_one_takes() -> None:
    """No call is tried for the larger workload."""
    log = list[tuple[str, str]]()
    small, large = (SMALL.with_(heads=1, kv_heads=1, queries=n, keys=n) for n in (64, 256))
    with conducted({A: Scripted(0.4), B: Scripted()}, log=log) as conductor:
        assert conductor.visit(small)[0].outcome is Outcome.MEASURED
        log.clear()
        told = conductor.visit(large)[0]
    assert told.outcome is Outcome.OVER_BUDGET and "a call would take about 6.4" in (told.reason or "")
    assert "warm" in {op for _, op in log} and "trial" not in {op for _, op in log}


def test_the_first_slow_calls_of_a_new_process_exclude_nobody() -> None:
    """PyTorch's first call took 719 ms instead of the usual 385 ms, and the baseline was missing at that size."""
    slow = iter([2.0] * 3)
    with conducted({A: Scripted(lambda visit, turn: next(slow, 0.4)), B: Scripted()}) as conductor:
        assert [one.outcome for one in conductor.visit(SMALL)] == [Outcome.MEASURED] * 2


def test_a_gradient_that_does_not_follow_its_inputs_is_wrong() -> None:
    """In a training step whose other answers are right."""
    training = SMALL.with_(direction="training")
    swapped = Scripted(spoils=lambda name, array: array[..., ::-1] if name == "key gradient" else array)
    with conducted({A: Scripted(), B: swapped}) as conductor:
        right, wrong = conductor.visit(training)
    assert right.outcome is Outcome.MEASURED, right.reason
    assert wrong.outcome is Outcome.WRONG and (wrong.reason or "").startswith("key gradient: ")


def test_disturbed_turns_are_left_out_by_pairs_but_never_more_than_half() -> None:
    """They are counted too. Turns of a worker that reports more time than passed, or less, never count."""
    waits = Scripted(noisy(1e-3, 1), waits=lambda turn: 0.3 if turn < 3 else 0.0)
    busy = Scripted(noisy(1e-3, 2), waits=lambda turn: 0.2 + turn / 100)
    limits = replace(QUICK, rounds=16)
    scripts = {A: waits, B: busy, C: Scripted(claims=1.5), f" {C}": Scripted(claims=0.6)}
    found = one_visit(conducted(scripts, limits=limits))
    left_out = {name: one.latency.disturbed_rounds for name, one in found.items() if one.latency}
    assert left_out == {A: {0, 1, 2}, B: {4, 5, 6, 7}, C: set(range(8)), f"{C}#2": set(range(8))}
    assert found[C].uncounted
    verdicts = verdicts_against(found.values(), A)
    assert (verdicts[B].rounds, verdicts[B].disturbed) == (1, 7) and verdicts[C].no_interval


def test_a_visit_in_which_the_machine_was_suspended_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that includes suspended time gains a minute at every reading."""
    told, sleeps, clock = list[str](), count(step=60.0), time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda one: clock(one) + next(sleeps) * (one == time.CLOCK_BOOTTIME)
    )
    with conducted({A: Scripted(), B: Scripted()}, on_event=told.append) as conductor:
        assert conductor.visit(SMALL) == []
    assert any("suspended" in one for one in told)


def test_time_ends_visits_or_whoever_asks_but_not_before_the_least_number() -> None:
    """No further visit is made if no contender is left."""
    limits = replace(QUICK, visits=3, most_visits=9, workload_seconds=1e6)
    for how, visits in (({}, 9), ({"enough": lambda results: len(results[0].latency.samples) >= 24}, 4)):
        with conducted({A: Scripted(), B: Scripted()}, limits=limits) as conductor:
            assert len(list(conductor.visits(SMALL, **how))) == visits
    limits = replace(limits, workload_seconds=1e-9)
    with conducted({A: Scripted(), B: Scripted()}, limits=limits) as conductor:
        assert len(list(conductor.visits(SMALL))) == 3
    dead = {name: Scripted(fails={"load": Failed("unavailable", "gone")}) for name in (A, B)}
    with conducted(dead, limits=limits) as conductor:
        assert [len(one) for one in conductor.visits(SMALL)] == [2]
    limits = replace(QUICK, most_visits=9, workload_seconds=1e6)
    with conducted({A: Scripted(), B: dead[B]}, limits=limits) as conductor:
        assert [len(one) for one in conductor.visits(SMALL)] == [2, 1]


def test_a_further_visit_asks_those_between_whom_it_is_open() -> None:
    """At first it also asks the baseline and its control. It asks none once all are surely slower or surely close."""
    scripts = {
        C: Scripted(noisy(1e-2, 1)),
        f" {C}": Scripted(noisy(1e-2, 2)),
        A: Scripted(noisy(1e-3, 3, visits=0.03)),
        B: Scripted(noisy(1.02e-3, 4, visits=0.03)),
    }
    limits = replace(QUICK, visits=2, most_visits=6, rounds=8)
    with conducted(scripts, limits=limits) as conductor:
        found = conductor.visit(SMALL)
        assert set(conductor.asked(found)) == {A, B, C, f"{C}#2"}
        found = merged([*found, *conductor.visit(SMALL, number=1)])
        assert set(conductor.asked(found)) == {A, B}
        for number in range(2, 6):
            found = merged([*found, *conductor.visit(SMALL, [A, B], number=number)])
        assert conductor.asked(found) == [], "the most visits that there may be"
    scripts = {C: Scripted(1e-2), A: Scripted(noisy(1e-3, 3)), B: Scripted(noisy(1.5e-3, 4))}
    with conducted(scripts, limits=limits) as conductor:
        found = merged(chain(*(conductor.visit(SMALL, number=number) for number in range(2))))
        assert conductor.asked(found) == []


def test_what_failed_later_leaves_nothing_open() -> None:
    """Otherwise the other contender would be visited alone until the time of the run is spent."""
    scripts = {A: Scripted(noisy(1e-3, 1, visits=0.03)), B: Scripted(noisy(1e-3, 2, visits=0.03))}
    with conducted(scripts, limits=replace(QUICK, most_visits=9)) as conductor:
        found = conductor.visit(SMALL)
        scripts[A].fails["load"] = Failed("crashed", "gone")
        found = merged([*found, *conductor.visit(SMALL, number=1)])
        assert conductor.asked(found) == []


def test_what_takes_long_is_asked_once() -> None:
    """The kernel and the memory are asked once. A resumed run does not ask again what is settled."""
    scripts = {A: Scripted(), B: Scripted()}
    with conducted(scripts, limits=replace(QUICK, visits=4, most_visits=4)) as conductor:
        found = conductor.race(SMALL)
    asked = scripts[A].asked
    once = sum(one.applies(SMALL) for one in INSTRUMENTS.values())
    assert (asked.count("attest"), asked.count("measure"), asked.count("turn")) == (1, once, 28)
    assert found[0].peak_bytes == 4096 and found[0].kernel == "scripted"
    declined = Result(B, SMALL, Outcome.DECLINED, "no masks")
    with conducted(scripts) as conductor:
        conductor.remember([found[0], declined])
        assert [one.contender for one in conductor.visit(SMALL, number=7)] == [A]


def test_the_parts_of_a_block_are_measured_in_every_visit_and_its_memory_once() -> None:
    script = Scripted()
    with conducted({A: script, B: Scripted()}) as conductor:
        found, _ = conductor.race(SMALL.with_(d_model=8))
    counts = {one.quantity: len(one.samples) for one in found.measurements}
    assert (counts["block_parts"], counts["peak_memory"], script.asked.count("measure")) == (2, 1, 3)
    assert script.visits == 3 and script.asked[-2:] == ["prepare", "measure"], "memory has a visit of its own"


def test_a_contender_that_hangs_everywhere_is_not_asked_for_more() -> None:
    """This holds for workloads that are no smaller: each would take a whole deadline."""
    hangs = Scripted(fails={"answer": Failed("timed_out", "no answer")})
    with conducted({A: hangs, B: Scripted()}) as conductor:
        for length in (8, 16):
            conductor.visit(SMALL.with_(queries=length, keys=length))
        asked = len(hangs.asked)
        larger, smaller = (conductor.visit(SMALL.with_(queries=one, keys=one)) for one in (32, 4))
    assert "not tried" in str({one.contender: one.reason for one in larger}[A])
    assert {one.contender: one.reason for one in smaller}[A] == "no answer" and len(hangs.asked) > asked


def test_the_baseline_entered_twice_is_told_apart_from_nothing() -> None:
    """An A/A control of five visits with up to twelve rounds, with the scatter of a quiet machine."""
    scripts = {A: Scripted(noisy(1e-3, 1)), f" {A}": Scripted(noisy(1e-3, 2)), B: Scripted(noisy(1.45e-3, 3))}
    limits = replace(QUICK, visits=5, most_visits=5, rounds=12, workload_seconds=1e6)
    with conducted(scripts, limits=limits) as conductor:
        verdicts = verdicts_against(conductor.race(SMALL), A)
    control, slower = verdicts[f"{A}#2"], verdicts[B]
    assert control.low < 1 < control.high and control.high / control.low < 1.02
    assert slower.kind is Kind.SLOWER and slower.low < 1.45 < slower.high
    assert np.isclose(slower.ratio, 1.45, rtol=0.01)


def test_inputs_that_do_not_fit_are_an_outcome_of_every_contender() -> None:
    with conducted({A: Scripted(), B: Scripted()}) as conductor:
        found = conductor.visit(Workload(heads=512, queries=1, keys=2**24, head_dim=256))
    assert [one.outcome for one in found] == [Outcome.OVER_BUDGET] * 2
    assert all("its inputs take" in str(one.reason) for one in found)
