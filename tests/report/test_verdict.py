"""The verdict says what the data say, and no more: its line, its table, its sentences."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import synthetic

from attnlab.judge.analysis import choose
from attnlab.judge.crossover import find_crossovers
from attnlab.judge.pairing import LOOK_ALPHA, half_width
from attnlab.judge.ranking import Sure
from attnlab.problem.result import Outcome
from attnlab.report import tables, verdict_figures, verdict_text
from attnlab.report.analysis import analyse
from attnlab.report.answer import MOST, answer_of
from attnlab.report.tables import MOST_HEADS, MOST_LENGTHS, readable

FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS, EQUAL = {"a": SLOW, "b": FAST}, {"a": FAST, "b": FAST}
SIZES = {"lengths": (64, 128, 256, 512), "heads": (1, 4), "rounds": 31}
CELL = r"(.) `(\w+)`(?:, `\w+`)?(?: \+\d+)? ([\d.]+) \[([\d.]+), ([\d.]+)\]"


def said(run):
    """The line, and the sentences below it."""
    found = answer_of(analyse(run))
    return [found.line, *found.sentences]


def test_the_ratio_and_interval_in_the_table_are_those_of_the_samples(made):
    run = made(costs=B_WINS, lengths=(256,), heads=(4,), rounds=30)
    first, second = ({r.contender: r for r in run.results}[name].latency.by_round() for name in "ab")
    # six rounds a process; round 3 is the disturbed one
    pairs = [[i for i in range(at, at + 6) if i != 3] for at in range(0, 30, 6)]
    figures = [statistics.median(math.log(first[i] / second[i]) for i in pair) for pair in pairs]
    center, half = statistics.fmean(figures), half_width(statistics.stdev(figures), 5, LOOK_ALPHA)
    (group,) = answer_of(analyse(run)).groups
    mark, name, *numbers = re.search(CELL, group.table).groups()
    assert (mark, name) == ("●", "b")
    expected = (math.exp(center), math.exp(center - half), math.exp(center + half))
    assert [float(one) for one in numbers] == pytest.approx(expected, rel=0.005)
    assert said(run)[0] == "**Use `b`**: nothing is decidedly faster here."
    assert said(run)[1].startswith("`b` is decidedly the fastest at n = 256, 4 heads")


def test_the_range_in_a_sentence_covers_every_workload(made):
    run = made(costs=B_WINS, **SIZES)
    ratios = [one.won.ahead.ratio for one in analyse(run).won]
    line, how_sure, *_ = said(run)
    assert line == "**Use `b`**: nothing is decidedly faster at any of 8 sizes."
    found = re.search(r"fastest at all 8 sizes, ([\d.]+) to ([\d.]+) times as fast as the next\.$", how_sure)
    assert [float(one) for one in found.groups()] == pytest.approx([min(ratios), max(ratios)], rel=0.005)


def test_every_cell_of_the_table_names_a_decided_winner_or_a_tie(made):
    """`a` ties at one head and loses at four."""
    costs = {"a": lambda w: FAST(w) if w.heads == 1 else SLOW(w), "b": FAST}
    run = made(costs=costs, noise=0.001, **SIZES)
    (group,) = answer_of(analyse(run)).groups
    for row in group.table.splitlines()[2:]:
        _, _, one, four, _ = row.split("|")
        assert one.strip().startswith("≈ ") and "`a`" in one and "`b`" in one
        assert four.strip().startswith("● `b`") and "`a`" not in four
    line, how_sure, *_ = said(run)
    assert line == "**Use `b`**: nothing is decidedly faster at any of 8 sizes."
    assert how_sure.startswith("`b` is decidedly the fastest at 4 of 8 sizes, ")
    assert how_sure.endswith("; at 4 more it is tied with `a`, so choose by memory there.")


def test_where_another_is_faster_it_is_named(made):
    turns = {"a": SLOW, "b": lambda w: 3 * SLOW(w) if w.heads == 1 and w.keys == 64 else FAST(w)}
    line, _, elsewhere, *_ = said(made(costs=turns, noise=0.002, **SIZES))
    assert line == "**Use `b`**: at 7 of 8 sizes it is the fastest or tied with it."
    assert re.match(
        r"At n = 64, 1 head `b` takes [23]\.\d times as long as the fastest: use `a` there\.", elsewhere
    )


def test_equals_are_a_tie_and_nobody_wins(made):
    """Chosen is who needs least memory of those tied."""
    run = made(costs={"torch_eager": FAST, "torch_sdpa": FAST}, kernels={}, noise=0.001, **SIZES)
    line, how_sure, *_ = said(run)
    assert line == "**No single winner.** Use `torch_sdpa`: at all 8 sizes it is tied for first."
    assert how_sure.startswith("`torch_sdpa` is tied for first at all 8 sizes, with `torch_eager`:")
    assert {one.won.sure for one in analyse(run).won} == {Sure.TIE}


def test_two_names_for_one_kernel_are_no_rivals(made):
    costs = {"torch_one": FAST, "torch_two": FAST, "other": SLOW}
    kernels = {"torch_one": "flash_attention", "torch_two": "flash_attention", "other": "some BLAS"}
    run = made(costs=costs, kernels=kernels, baseline="other", **SIZES)
    for one in analyse(run).won:
        assert one.won.first == ("torch_one",)
        assert one.won.sure is Sure.DECIDED
        assert one.won.ahead.over == one.won.over_baseline.over == "other"
        assert "torch_two" in one.first
    assert said(run)[0].startswith("**Use `torch_one`**")


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
    (told,) = [one for one in said(run) if "is the faster below" in one]
    assert re.match(
        r"`a` is the faster below, and `b` above, n ≈ 6\d\d \[.*\] with 1 head and n ≈ 3\d\d \[.*\] with 4 heads\.$",
        told,
    )


def test_no_crossover_is_told_where_nobody_changes_places(made):
    run = made(costs=B_WINS, **SIZES)
    assert not any("faster below" in one for one in said(run))


def test_a_wrong_contender_is_named_and_has_no_speed(made):
    costs = {"a": SLOW, "b": FAST, "bad": lambda w: 1e-9}
    run = made(costs=costs, wrong=("bad",), **SIZES)
    told = [one for one in said(run) if "bad" in one]
    assert told == [
        "**Do not use `bad`**: its results are wrong at 8 of 8 sizes: relative error 0.31, at most 4e-06 is right."
    ]
    assert all("bad" not in cell.measured for cell in analyse(run).cells)


def test_several_wrong_ones_share_a_sentence(made):
    costs = {"a": SLOW, "b": FAST, "bad": SLOW, "worse": SLOW}
    told = said(made(costs=costs, wrong=("bad", "worse"), **SIZES))
    assert any(one.startswith("**Do not use `bad` and `worse`**: their results are wrong") for one in told)


def test_where_all_are_wrong_none_is_to_be_used(made):
    run = made(costs=B_WINS, wrong=("a", "b"), **SIZES)
    line, sentence = said(run)
    assert line == "**Use none of these here**: no contender gave right answers that could be timed."
    assert sentence.startswith("**Do not use `a` and `b`**: their results are wrong")
    assert not answer_of(analyse(run)).groups


def test_one_process_gives_no_verdict(made):
    run = made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=31, processes=1)
    run.plan = replace(run.plan, limits=replace(run.plan.limits, processes=1, most_processes=1))
    line, *rest = said(run)
    assert line.startswith("**No verdict yet**; `b` has the least median")
    assert any(
        "nobody could be compared with the fastest: an interval needs two processes of each" in one
        for one in rest
    )
    (place,) = analyse(run).won
    assert place.won.sure is Sure.NO_INTERVAL and place.won.ahead.low is None


def test_a_single_contender_is_compared_with_nothing(made):
    run = made(costs={"a": FAST}, **SIZES)
    line, *_ = said(run)
    assert line.startswith("**Only `a` has a time**: there is nothing to compare it with.")
    assert {one.won.sure for one in analyse(run).won} == {Sure.ALONE}


def disturbed(run, part, names=("a", "b")):
    """The run, with every turn of `names` flagged in which the round is within this part of all."""

    def flagged(one):
        if one.latency is None or one.contender not in names:
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
    assert any(
        "other programs used the cores; repeat the run when nothing else runs" in one for one in said(run)
    )
    assert "Warning: Other programs used this machine's cores: 54 of 60 turns had to wait" in text
    assert "(others took up to 1.5 cores, most of it rustc)" in text


def test_nobody_is_recommended_where_the_first_place_could_not_be_told(made):
    """The median alone is smaller there, of disturbed turns."""
    costs = {"a": FAST, "b": lambda w: SLOW(w) if w.keys == 64 else 0.9 * FAST(w)}
    run = made(costs=costs, lengths=(64, 128), heads=(1,), rounds=30)
    assert any("use `b` there" in one for one in said(run))
    told, run.results = (
        [one for one in run.results if one.workload.keys == 64],
        [one for one in run.results if one.workload.keys == 128],
    )
    run.results = [*told, *disturbed(run, 1.0).results]
    assert not any("use `b`" in one.lower() for one in said(run))
    assert any("nobody could be compared with the fastest" in one for one in said(run))


def test_one_that_could_not_be_compared_is_named(made):
    """It is neither tied nor beaten, and a reader must know that."""
    costs = {"a": SLOW, "b": FAST, "c": lambda w: 1.3 * FAST(w)}
    run = disturbed(made(costs=costs, rounds=30, lengths=(64,), heads=(1,)), 0.9, ("c",))
    (place,) = analyse(run).won
    assert place.won.sure is Sure.DECIDED and place.won.not_compared == ("c",)
    assert any(one.startswith("Somewhere `c` could not be compared") for one in said(run))


def test_a_few_disturbed_turns_are_worth_no_warning(made):
    run = disturbed(made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=30), 0.1)
    assert "Warning" not in verdict_text(run)
    assert said(run)[0].startswith("**Use `b`**")


def test_a_reader_is_told_of_a_line_that_was_cut_off(made):
    run = made(costs=B_WINS, lengths=(64,), heads=(1,), rounds=30)
    assert "cut off" not in verdict_text(run)
    run.torn = True
    assert "Warning: The last line of the results was cut off while it was written" in verdict_text(run)


def test_a_speed_far_above_the_ceiling_is_a_failed_measurement(made):
    costs = {"a": SLOW, "magic": lambda w: w.flops / 4e12}
    run = made(costs=costs, **SIZES)
    for cell in analyse(run).cells:
        assert "magic" not in cell.measured
        assert "a failed measurement, not a speed" in cell.faults["magic"]
    assert not any("magic" in one for one in said(run))


def test_a_broken_self_test_is_told_and_widens_the_margin(made):
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    run = made(contenders=("a", "a#2", "b"), costs=costs, noise=0.002, second_entry=1.06, **SIZES)
    analysis = analyse(run)
    assert analysis.margin == 0.01
    assert all(0.055 < cell.margin < 0.065 for cell in analysis.cells)
    text = verdict_text(run)
    assert "Warning: The self-test failed on 8 of 8 workloads" in text
    assert "differed from itself by up to 6." in text
    assert "Smaller differences on these workloads are called ties below" in text
    # 4 % is below what this machine tells apart
    assert {one.won.sure for one in analysis.won} == {Sure.TIE}


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


def test_memory_is_told_at_the_largest_workload(made):
    run = made(lengths=(64, 1024), heads=(1, 16), contenders=("torch_eager", "torch_sdpa"))
    (told,) = [one for one in said(run) if "of memory" in one]
    assert told == (
        "At n = 1024, 16 heads `torch_sdpa` needs 4.82 MiB of memory, `torch_eager` the most, 133 MiB: where memory "
        "is short, keep to those that need little."
    )


def test_who_is_far_behind_everywhere_is_to_be_left_out(made):
    costs = {"a": FAST, "b": SLOW, "c": lambda w: 40 * FAST(w)}
    (told,) = [one for one in said(made(costs=costs, noise=0.002, **SIZES)) if "Leave out" in one]
    assert re.match(r"Leave out `c`: wherever measured, it takes (39\.\d to )?40\.\d times", told)


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.lists(st.floats(0.3, 30.0), min_size=1, max_size=18),
    st.integers(1, 4),
    st.floats(0.0, 0.3),
    st.integers(0, 2**20),
)
def test_a_verdict_stays_short_whatever_was_measured(tmp_path_factory, speeds, heads, noise, seed):
    """Five sentences at most, none longer than 260 letters, and the choice is first or tied at most sizes."""
    costs = {
        f"backend_number_{place}": lambda w, s=speed, p=place: (
            1e-4 * s * (1 + 1e-3 * w.keys * ((p + w.heads) % 3))
        )
        for place, speed in enumerate(speeds)
    }
    run = synthetic(
        tmp_path_factory.mktemp("run"),
        costs=costs,
        lengths=(64, 512),
        heads=tuple(range(1, heads + 1)),
        noise=noise,
        seed=seed,
        wrong=("backend_number_3",),
        ceiling_flops=1e18,
    )
    analysis = analyse(run)
    found = answer_of(analysis)
    assert len(found.sentences) <= MOST
    assert all(len(one) <= 260 for one in (found.line, *found.sentences))
    places = analysis.won
    chosen = choose(places, analysis.names)
    for name in analysis.names:
        assert sum(name in one.first for one in places) <= sum(chosen.name in one.first for one in places)
    everywhere = [*chosen.won, *chosen.tied, *chosen.behind, *chosen.absent]
    alone = [
        one for one in places if one.won.sure not in (Sure.DECIDED, Sure.TIE) and chosen.name in one.first
    ]
    assert len(everywhere) + len(alone) == len(places)
    assert {one.outcome for one in run.results} <= {Outcome.MEASURED, Outcome.WRONG, Outcome.OVER_BUDGET}


def test_of_more_sizes_than_can_be_read_an_even_part_is_drawn_and_told(made, tmp_path):
    """Its ends are there, and the group that the tables show stays whole."""
    run = made(costs=B_WINS, lengths=tuple(64 * one for one in range(1, 16)), heads=tuple(range(1, 12)))
    analysis = analyse(run)
    (group,) = analysis.groups
    shown = readable(group)
    assert (len(shown.heads), len(shown.lengths)) == (MOST_HEADS, MOST_LENGTHS)
    assert (shown.heads[0], shown.heads[-1], shown.lengths[0], shown.lengths[-1]) == (1, 11, 64, 960)
    assert len(group.cells) == 15 * 11
    says = verdict_figures.heat_maps(analysis)["winners"].says
    assert "at 60 sizes" in says
    assert says.endswith("Drawn are 6 of 11 head counts and 10 of 15 lengths; the tables have all.")
    trailing = verdict_figures.trailing(analysis)
    assert trailing is not None and trailing.says.endswith("Drawn are 6 of 11 head counts.")


def test_a_table_of_more_sizes_than_can_be_read_shows_an_even_part_and_tells_it(made):
    """The verdict's table, and that of the memory; a table that is read whole says nothing of parts."""
    lengths, heads = tuple(64 * one for one in range(1, 16)), tuple(range(1, 12))
    analysis = analyse(made(costs=B_WINS, lengths=lengths, heads=heads))
    (group,) = analysis.groups
    verdict = answer_of(analysis).groups[0].table
    assert len([row for row in verdict.splitlines() if row.startswith("|")]) == 2 + 10
    assert verdict.endswith("Shown are 6 of 11 head counts and 10 of 15 lengths; the tables have all.")
    memory = tables.peaks(analysis, group)
    assert memory.endswith("Shown are 6 of 11 head counts; the tables have all.")
