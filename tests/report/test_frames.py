"""The frames show what was built into a run: medians, speedups and their direction, errors, the control, the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from process_sets import compared
from synthetic import disturbed

from attnlab.report import answer, bmf, comparison_text, to_json, verdict_text
from attnlab.report.explore import page
from attnlab.report.frames import NOT_BELIEVED, Frames, grids
from attnlab.runs.store import Run
from attnlab.text import seconds_text
from attnlab.workload.result import Accuracy, Result

Make = Callable[..., Run]
FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS = {"a": SLOW, "b": FAST}
SIZES: dict[str, Any] = {"lengths": (64, 128, 256, 512), "heads": (1, 4), "rounds": 31, "noise": 0.001}


def test_a_speedup_above_1_means_faster(made: Make) -> None:
    """Over the baseline, over the second, and of the fastest over each other contender; each is within its interval."""
    frames = Frames(made(costs=B_WINS, **SIZES))
    results, winners = frames.results, frames.winners
    assert len(results) == 16 and len(winners) == 8
    fast, slow = (results[results.contender == name] for name in "ba")
    for row in fast.itertuples():
        assert row.seconds == pytest.approx(1e-4 + 1e-9 * row.heads * row.n**2, rel=0.2)
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.speedup == pytest.approx(2, rel=0.05)
        assert row.verdict == "faster" and row.first and row.visits == 5
    assert set(slow.speedup) == {1.0} and set(slow.verdict) == {"baseline"}
    assert slow.behind.to_list() == pytest.approx([2.0] * 8, rel=0.05)
    assert set(zip(winners.contender, winners.sure, winners.runner_up, strict=True)) == {
        ("b", "decided", "a")
    }
    assert winners.speedup.to_list() == pytest.approx([2.0] * 8, rel=0.05)


def test_what_is_wrong_or_not_believed_has_no_speed(made: Make) -> None:
    """This holds for wrong answers, rates above the machine's ceiling, and contenders with only disturbed rounds."""
    costs = {**B_WINS, "bad": lambda w: 1e-9, "magic": lambda w: w.flops / 4e12, "late": FAST}
    run = made(costs=costs, wrong=("bad",), **SIZES)
    late, others = ([one for one in run.results if (one.contender == "late") is its] for its in (True, False))
    run.results = others + disturbed(replace(run, results=late), lambda *turn: True).results
    frames = Frames(run)
    for name, outcome in {"bad": "wrong", "magic": NOT_BELIEVED, "late": NOT_BELIEVED}.items():
        mine = frames.results[frames.results.contender == name]
        assert set(mine.outcome) == {outcome} and mine.reason.notna().all() and len(mine) == 8
        assert mine[["seconds", "speedup", "behind", "peak_bytes", "flops"]].isna().all(axis=None)
    assert set(frames.winners.contender) == {"b"}
    assert set(frames.left_out.contender) == {"bad", "magic", "late"}
    (row,) = answer(frames)["faulty"].itertuples()
    assert (row.contender, row.outcome, row.at, row.of) == ("bad", "wrong", 8, 8)


def test_errors_are_shown_as_shares_of_their_budget(made: Make) -> None:
    run = made(costs=B_WINS, **SIZES)
    worse = Accuracy(3e-6, 4e-6, passed=True)
    run.results = [replace(one, accuracy=worse) if one.workload.keys == 128 else one for one in run.results]
    found = Frames(run).accuracy
    assert found.n.to_list() == [128, 128] and found.share.to_list() == pytest.approx([0.75, 0.75])


def test_the_control_is_a_contender_against_itself(made: Make) -> None:
    """A second entry that is 6 % slower fails the control. Smaller differences then count as none."""
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    options = {"contenders": ("a", "a#2", "b"), "costs": costs, **SIZES, "noise": 0.002}
    steady, wild = Frames(made(**options)), Frames(made(second_entry=1.06, **options))
    assert not steady.control.differs.any() and set(steady.control.contender) == {"a"}
    assert wild.control.differs.all()
    assert wild.control.speedup.to_list() == pytest.approx([1 / 1.06] * 8, rel=0.01)
    assert answer(wild)["warned"]["control_failed"] == 8 and answer(steady)["warned"]["control_failed"] == 0
    assert set(wild.winners.sure) == {"tie"} and "a#2" not in set(wild.results.contender)


def test_a_contender_that_computes_in_less_is_ranked_apart(made: Make) -> None:
    """Here it is twice as fast, but never the winner."""
    run = made(costs={"a": SLOW, "quick": FAST}, **SIZES)
    lower = {"quick": "bfloat16"}
    run.results = [replace(one, computes_in=lower.get(one.contender)) for one in run.results]
    frames = Frames(run)
    assert set(frames.winners.contender) == {"a"}
    assert dict(answer(frames)["lower"][["contender", "computes_in"]].to_numpy().tolist()) == lower


def test_groups_are_ranked_by_themselves(made: Make) -> None:
    """The groups are forward and training, and each has another winner."""
    costs = {"a": lambda w: 1e-4 if w.direction == "forward" else 4e-4, "b": lambda w: 2e-4}
    frames = Frames(made(costs=costs, variants=({}, {"direction": "training"}), **SIZES, ceiling_flops=1e18))
    use = {name: chosen["name"] for name, chosen in answer(frames)["groups"]}
    assert len(use) == 2 and sorted(use.values()) == ["a", "b"] and answer(frames)["kinds"] == 2
    assert [len(one.cells) for one in grids(frames.winners)] == [8, 8]


def chosen(run: Run) -> dict[str, Any]:
    found = answer(Frames(run))["chosen"]
    assert found is not None
    return dict(found)


def test_the_choice_counts_where_it_wins_ties_and_trails(made: Make) -> None:
    won = chosen(made(costs=B_WINS, **SIZES))
    assert (won["name"], won["won"], won["sizes"], won["behind"]) == ("b", 8, 8, 0)
    tied = chosen(made(costs={"a": FAST, "b": FAST}, kernels={}, **{**SIZES, "noise": 0.05}))
    assert tied["won"] < 8 and tied["close"] + tied["tied"] > 0
    crossing = {"a": FAST, "b": lambda w: 3 * FAST(w) if w.keys < 512 else 0.5 * FAST(w)}
    trails = chosen(made(costs=crossing, **SIZES))
    assert (trails["name"], trails["behind"], trails["others"]) == ("a", 2, ["b"])
    assert trails["worst"].behind == pytest.approx(2, rel=0.05) and trails["worst"].n == 512
    alone = chosen(made(costs={"a": FAST}, **SIZES))
    assert alone["alone"] and alone["known"] is False
    assert not chosen(made(costs=B_WINS, **{**SIZES, "visits": 1, "rounds": 2}))["known"]


def test_slow_contenders_are_named_only_with_an_interval(made: Make) -> None:
    """A contender that is 93 times slower in a single visit may be slow only there."""
    costs = {"a": FAST, "slow": lambda w: 93 * FAST(w)}
    for rounds, visits in ((2, 1), (31, 5)):
        found = answer(Frames(made(costs=costs, **{**SIZES, "visits": visits, "rounds": rounds})))["slow"]
        assert list(found.index) == (["slow"] if visits > 1 else [])
    assert found["slow"] == pytest.approx(93, rel=0.05)


def test_who_is_fastest_somewhere_is_not_left_out(made: Make) -> None:
    """This holds however slow it is at another size."""
    costs = {"a": FAST, "b": lambda w: FAST(w) * (93 if w.keys > 64 else 0.5)}
    assert not len(answer(Frames(made(costs=costs, lengths=(64, 128), heads=(1,), visits=5)))["slow"])


def test_disturbed_rounds_are_counted_and_warned_of(made: Make) -> None:
    small: dict[str, Any] = {"lengths": (64,), "heads": (1,), "rounds": 30}
    for most, busy in ((27, True), (3, False)):
        run = disturbed(made(costs=B_WINS, **small), lambda n, turn, visit: turn < most)  # noqa: B023 - called now
        found = answer(Frames(run))["warned"]
        assert (found["disturbed"], found["timings"], found["busy"]) == (2 * most, 60, busy)


def test_plain_data_for_other_programs(made: Make) -> None:
    """JSON with the frames, and Bencher's metric format with its units."""
    run = made(costs={**B_WINS, "torch_sdpa_cudnn": FAST}, wrong=("torch_sdpa_cudnn",), **SIZES)
    told = to_json(run)
    assert (told["use"], told["baseline"], told["margin"]) == ("b", "a", 0.01) and len(told["winners"]) == 8
    assert len(told["results"]) == 24 and told["results"][-1]["seconds"] is None
    tiny = Accuracy(1.4901161193847656e-15, 4e-14, passed=True)
    run.results = [replace(one, accuracy=tiny) for one in run.results]
    assert {one["error"] for one in to_json(run)["results"]} == {tiny.relative_error}, "every digit"
    found = bmf(run)
    assert len(found) == 16
    for name, one in found.items():
        assert one["latency"]["value"] > 1e4, "nanoseconds"
        if name.endswith(" b"):
            assert one["speedup"]["lower_value"] <= one["speedup"]["value"] <= one["speedup"]["upper_value"]


def test_two_speeds_from_visit_to_visit_are_told(made: Make) -> None:
    """Both values, and the number of visits with each."""
    run = made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=48, visits=8, noise=1e-3, wander=0.0)

    def with_two(one: Result) -> Result:
        assert one.latency is not None
        pairs = zip(one.latency.samples, one.latency.visits.values(), strict=True)
        samples = tuple(took * (1.3 if at % 2 else 1.0) for took, at in pairs)
        return replace(one, measurements=(replace(one.latency, samples=samples),))

    run.results = [with_two(one) if one.contender == "b" else one for one in run.results]
    (found,) = answer(Frames(run))["two_speeds"]
    fast, slow = found["of"]
    assert found["name"] == "b" and (fast.visits, slow.visits) == (4, 4)
    assert slow.seconds == pytest.approx(1.3 * fast.seconds, rel=0.01)
    raced = comparison_text(compared(*run.results))
    for text in (verdict_text(run), raced, page(Frames(run), verdict_text(run))):
        assert all(seconds_text(one.seconds) in text and "two speeds" in text for one in found["of"])
