"""The verdict's sentences say what the data say, and no more."""

from __future__ import annotations

import math
import re
import statistics

import pytest

from attnlab.report import verdict_text
from attnlab.report.analysis import analyse
from attnlab.report.winners import find_crossovers

FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS, EQUAL = {"a": SLOW, "b": FAST}, {"a": FAST, "b": FAST}
SIZES = {"lengths": (64, 128, 256, 512), "heads": (1, 4), "rounds": 31}


def lines(run):
    return [line[2:] for line in verdict_text(run).splitlines() if line.startswith("- ")]


def test_the_ratio_and_interval_in_a_sentence_are_those_of_the_samples(made):
    run = made(costs=B_WINS, lengths=(256,), heads=(4,), rounds=31)
    first, second = ({r.contender: r for r in run.results}[name].latency.by_round() for name in "ab")
    kept = [i for i in first if i != 3]  # round 3 is the disturbed one
    logs = sorted(math.log(first[i] / second[i]) for i in kept)
    sentence = lines(run)[0]
    ratio, low, high = map(
        float, re.search(r"it is ([\d.]+) \[([\d.]+), ([\d.]+)\] times", sentence).groups()
    )
    assert ratio == pytest.approx(math.exp(statistics.median(logs)), rel=0.005)
    # 30 rounds, one comparison: the 10th from either end
    assert (low, high) == pytest.approx((math.exp(logs[9]), math.exp(logs[-10])), rel=0.005)
    assert sentence.startswith("Use b for n = 256 at 4 heads")
    assert "the next other implementation and the baseline, a" in sentence


def test_a_range_of_ratios_covers_every_workload(made):
    run = made(costs=B_WINS, **SIZES)
    analysis = analyse(run)
    ratios = [cell.ranking.runner_up.against_best for cell in analysis.cells]
    low, high = min(v.ratio for v in ratios), max(v.ratio for v in ratios)
    sentence = lines(run)[0]
    assert "for 64 ≤ n ≤ 512 at 1 and 4 heads" in sentence
    found = re.search(r"it is ([\d.]+) to ([\d.]+) times as fast .* from ([\d.]+) to ([\d.]+)\)", sentence)
    assert [float(one) for one in found.groups()] == pytest.approx(
        [low, high, min(v.low for v in ratios), max(v.high for v in ratios)], rel=0.005
    )


def test_one_that_is_first_or_shares_it_everywhere_is_named_before_all(made):
    def other(workload):
        return FAST(workload) if workload.heads == 1 else SLOW(workload)

    both = made(costs={"a": other, "b": FAST}, **SIZES)
    assert lines(both)[0].startswith("In short: use b. On none of 8 workloads was anything decidedly faster")
    assert "it is alone in first place on 4 and shares it on 4" in lines(both)[0]
    # alone everywhere, or first only here and there: nothing to sum up
    alone = made(costs=B_WINS, **SIZES)
    assert "In short" not in verdict_text(alone)
    turns = {"a": other, "b": lambda w: SLOW(w) if w.heads == 1 else FAST(w)}
    assert "In short" not in verdict_text(made(costs=turns, **SIZES))


def test_equals_are_called_a_tie_and_neither_wins(made):
    run = made(costs=EQUAL, **SIZES)
    said = lines(run)
    assert said[0].startswith("Use a or b for")
    assert "cannot be told apart" in said[0]
    assert not any("times as fast as" in one for one in said)
    # measured well they are
    assert "they are equivalent (within ±1.0 %)" in lines(made(costs=EQUAL, noise=0.001, **SIZES))[0]


def test_two_names_for_one_kernel_are_no_rivals(made):
    costs = {"torch_one": FAST, "torch_two": FAST, "other": SLOW}
    kernels = {"torch_one": "flash_attention", "torch_two": "flash_attention", "other": "some BLAS"}
    run = made(costs=costs, kernels=kernels, baseline="other", **SIZES)
    said = lines(run)[0]
    assert "Use torch_one (or torch_two: the same kernel)" in said
    assert "the next other implementation and the baseline, other" in said
    assert "told apart" not in said


def test_a_crossover_is_found_where_it_was_built_in(made):
    # t_a = t_b where 4e-4 = 1e-9 n² heads: n = 632 at 1 head, 316 at 4
    costs = {"a": lambda w: 1e-4 + 2e-9 * w.pairs, "b": lambda w: 5e-4 + 1e-9 * w.pairs}
    run = made(costs=costs, **{**SIZES, "lengths": (64, 128, 256, 512, 1024)})
    analysis = analyse(run)
    found = find_crossovers(analysis, analysis.groups[0])
    for heads, truth in ((1, 632), (4, 316)):
        (one,) = found[heads]
        assert (one.below, one.above) == ("a", "b")
        assert one.low <= one.length <= one.high
        assert one.last_below < one.length < one.first_above
        assert one.length == pytest.approx(truth, rel=0.1)
    (said,) = [line for line in lines(run) if "Crossover" in line]
    assert "a is faster below, and b above, n ≈ 6" in said
    # who wins is said for each side
    assert any(
        line.startswith("Use a for 64 ≤ n ≤ 512 at 1 head; 64 ≤ n ≤ 256 at 4 heads") for line in lines(run)
    )


def test_no_crossover_is_said_to_be_none_between_the_lengths_that_were_measured(made):
    run = made(costs=B_WINS, **SIZES)
    assert any(line.startswith("No crossover: between n = 64 and 512") for line in lines(run))
    run.results = [one for one in run.results if one.workload.queries == 64]
    assert not any("rossover" in line for line in lines(run))


def test_a_small_lead_asks_for_other_processes(made):
    costs = {"a": FAST, "b": lambda w: 1.03 * FAST(w)}
    run = made(costs=costs, baseline="b", noise=0.002, **SIZES)
    said = lines(run)[0]
    assert "Leads under 5.0 %" in said
    assert "attnlab compare b a --length" in said
    # a large one does not
    assert "attnlab compare" not in lines(made(costs=B_WINS, **SIZES))[0]


def test_a_wrong_contender_is_named_and_has_no_speed(made):
    costs = {"a": SLOW, "b": FAST, "bad": lambda w: 1e-9}
    run = made(costs=costs, wrong=("bad",), **SIZES)
    said = lines(run)
    assert [one for one in said if "bad" in one] == [one for one in said if one.startswith("Do not use bad")]
    assert all("bad" not in cell.measured for cell in analyse(run).cells)


def test_too_few_rounds_give_no_verdict(made):
    run = made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=4)
    said = lines(run)[0]
    assert said.startswith("No verdict for n = 64 at 1 head")
    assert "an interval needs 6" in said


def test_a_speed_above_the_ceiling_is_a_failed_measurement(made):
    costs = {"a": SLOW, "magic": lambda w: w.flops / 300e9}
    run = made(costs=costs, **SIZES)
    for cell in analyse(run).cells:
        assert "magic" not in cell.measured
        assert "a failed measurement, not a speed" in cell.faults["magic"]
    assert not any("magic" in one for one in lines(run))


def test_a_broken_self_test_comes_first_and_widens_the_margin(made):
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    run = made(contenders=("a", "a#2", "b"), costs=costs, noise=0.002, second_entry=1.06, **SIZES)
    analysis = analyse(run)
    assert 0.05 < analysis.margin < 0.065
    assert all(cell.margin >= 0.055 for cell in analysis.cells)
    text = verdict_text(run)
    assert text.startswith("Warning: The self-test failed on 8 of 8 workloads")
    assert f"Differences smaller than {analysis.margin * 100:.1f} % cannot be told from noise" in text
    # 4 % is below what this machine tells apart
    assert "Use a or b" in text


def test_a_sound_self_test_warns_of_nothing(made):
    run = made(contenders=("a", "a#2", "b"), costs={"a": FAST, "b": SLOW}, noise=0.002, **SIZES)
    assert "Warning" not in verdict_text(run)
    assert "a#2" not in verdict_text(run)


def test_many_that_cannot_be_told_apart_have_no_winner(made):
    costs = dict.fromkeys("abcd", FAST)
    said = lines(made(costs=costs, **SIZES))[0]
    assert said.startswith("No winner for")
