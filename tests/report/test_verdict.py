"""The verdict's sentences say what the data say, and no more."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace

import pytest

from attnlab.report import verdict_text
from attnlab.report.analysis import analyse
from attnlab.report.winners import find_crossovers
from attnlab.statistics.pairing import LOOK_ALPHA, half_width

FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS, EQUAL = {"a": SLOW, "b": FAST}, {"a": FAST, "b": FAST}
SIZES = {"lengths": (64, 128, 256, 512), "heads": (1, 4), "rounds": 31}


def lines(run):
    return [line[2:] for line in verdict_text(run).splitlines() if line.startswith("- ")]


def test_the_ratio_and_interval_in_a_sentence_are_those_of_the_samples(made):
    run = made(costs=B_WINS, lengths=(256,), heads=(4,), rounds=30)
    first, second = ({r.contender: r for r in run.results}[name].latency.by_round() for name in "ab")
    # six rounds a process; round 3 is the disturbed one
    pairs = [[i for i in range(at, at + 6) if i != 3] for at in range(0, 30, 6)]
    figures = [statistics.median(math.log(first[i] / second[i]) for i in pair) for pair in pairs]
    center, half = statistics.fmean(figures), half_width(statistics.stdev(figures), 5, LOOK_ALPHA)
    sentence = lines(run)[0]
    ratio, low, high = map(
        float, re.search(r"it is ([\d.]+) \[([\d.]+), ([\d.]+)\] times", sentence).groups()
    )
    assert ratio == pytest.approx(math.exp(center), rel=0.005)
    assert (low, high) == pytest.approx((math.exp(center - half), math.exp(center + half)), rel=0.005)
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


def test_a_small_lead_needs_no_further_race(made):
    """It rests on fresh processes already."""
    said = lines(made(costs={"a": FAST, "b": lambda w: 1.03 * FAST(w)}, baseline="b", noise=0.002, **SIZES))[
        0
    ]
    assert said.startswith("Use a for 64 ≤ n ≤ 512 at 1 and 4 heads: it is 1.03")
    assert "attnlab compare" not in said


def test_a_tie_says_how_many_processes_would_decide_it(made):
    costs = {"a": FAST, "b": lambda w: 1.03 * FAST(w)}
    run = made(costs=costs, lengths=(256,), heads=(4,), rounds=30, noise=0.03)
    (cell,) = analyse(run).cells
    verdict = cell.ranking.standings[1].against_best
    assert verdict.processes_needed > 5
    said = f"about {verdict.processes_needed} processes of each would decide it (5 pairs count)"
    assert said in lines(run)[0]


def test_a_wrong_contender_is_named_and_has_no_speed(made):
    costs = {"a": SLOW, "b": FAST, "bad": lambda w: 1e-9}
    run = made(costs=costs, wrong=("bad",), **SIZES)
    said = lines(run)
    assert [one for one in said if "bad" in one] == [one for one in said if one.startswith("Do not use bad")]
    assert all("bad" not in cell.measured for cell in analyse(run).cells)


def test_one_process_gives_no_verdict(made):
    run = made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=31, processes=1)
    said = lines(run)[0]
    assert said.startswith(
        "No verdict for n = 64 at 1 head: an interval needs two processes of each contender"
    )
    assert said.endswith("The least medians are those of b; give the run more time.")


def disturbed(run, part):
    """The run, with every turn flagged in which the round is within this part of all."""

    def flagged(one):
        if one.latency is None:
            return one
        columns = dict(one.latency.columns)
        count = len(columns["round"])
        columns["disturbed"] = tuple(float(index < part * count) for index in range(count))
        facts = {**one.latency.facts, "others": "1.5 cores, most of it rustc"}
        return replace(one, measurements=(replace(one.latency, columns=columns, facts=facts),))

    run.results = [flagged(one) for one in run.results]
    return run


def test_rounds_that_other_programs_disturbed_give_no_verdict_and_a_warning(made):
    run = disturbed(made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=30), 0.9)
    text = verdict_text(run)
    assert "other programs used the cores in most rounds" in lines(run)[0]
    assert "repeat the run when nothing else runs" in lines(run)[0]
    assert text.startswith("Warning: Other programs used this machine's cores: 54 of 60 turns had to wait")
    assert "(others took up to 1.5 cores, most of it rustc)" in text


def test_a_few_disturbed_turns_are_worth_no_warning(made):
    run = disturbed(made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=30), 0.1)
    assert "Warning" not in verdict_text(run)
    assert lines(run)[0].startswith("Use b")


def test_a_speed_far_above_the_ceiling_is_a_failed_measurement(made):
    costs = {"a": SLOW, "magic": lambda w: w.flops / 900e9}
    run = made(costs=costs, **SIZES)
    for cell in analyse(run).cells:
        assert "magic" not in cell.measured
        assert "a failed measurement, not a speed" in cell.faults["magic"]
    assert not any("magic" in one for one in lines(run))


def test_a_broken_self_test_comes_first_and_widens_the_margin(made):
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    run = made(contenders=("a", "a#2", "b"), costs=costs, noise=0.002, second_entry=1.06, **SIZES)
    analysis = analyse(run)
    assert analysis.margin == 0.01
    assert all(0.055 < cell.margin < 0.065 for cell in analysis.cells)
    text = verdict_text(run)
    assert text.startswith("Warning: The self-test failed on 8 of 8 workloads")
    assert "differed from itself by up to 6." in text
    assert "Smaller differences on these workloads are called ties below" in text
    # 4 % is below what this machine tells apart
    assert "Use a or b" in text


def test_a_self_test_that_fails_on_one_workload_widens_the_margin_there_alone(made):
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    options = {"contenders": ("a", "a#2", "b"), "costs": costs, "noise": 0.002, **SIZES}
    run, wild = made(**options), made(second_entry=1.06, **options)
    at = run.plan.workloads[0]
    run.results = [
        *(one for one in wild.results if one.workload == at),
        *(one for one in run.results if one.workload != at),
    ]
    margins = {cell.workload: cell.margin for cell in analyse(run).cells}
    assert margins.pop(at) > 0.055
    assert set(margins.values()) == {0.01}


def test_a_sound_self_test_warns_of_nothing(made):
    run = made(contenders=("a", "a#2", "b"), costs={"a": FAST, "b": SLOW}, noise=0.002, **SIZES)
    assert "Warning" not in verdict_text(run)
    assert "a#2" not in verdict_text(run)


def test_many_that_cannot_be_told_apart_have_no_winner(made):
    costs = dict.fromkeys("abcd", FAST)
    said = lines(made(costs=costs, **SIZES))[0]
    assert said.startswith("No winner for")
