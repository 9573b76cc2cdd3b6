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
from attnlab.report import verdict_figures, verdict_text
from attnlab.report.analysis import analyse
from attnlab.report.answer import MOST, answer_of
from attnlab.report.tables import MOST_HEADS, MOST_LENGTHS, readable

FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS = {"a": SLOW, "b": FAST}
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


def at_one_head(fast, other):
    return lambda w: fast(w) if w.heads == 1 else other(w)


@pytest.mark.parametrize(
    ("costs", "options", "expected"),
    [
        pytest.param(
            B_WINS,
            {},
            [
                r"\*\*Use `b`\*\*: nothing is decidedly faster at any of 8 sizes\.$",
                r"`b` is decidedly the fastest at all 8 sizes, [\d.]+( to [\d.]+)? times as fast as the next\.$",
            ],
            id="one wins everywhere",
        ),
        pytest.param(
            {"a": at_one_head(FAST, SLOW), "b": FAST},
            {},
            [
                r"\*\*Use `b`",
                r".*fastest at 4 of 8 sizes, .*; at 4 more it is tied with `a`, so choose by memory",
            ],
            id="tied at some",
        ),
        pytest.param(
            {"a": SLOW, "b": lambda w: 3 * SLOW(w) if w.heads == 1 and w.keys == 64 else FAST(w)},
            {},
            [
                r"\*\*Use `b`\*\*: at 7 of 8 sizes it is the fastest or tied with it\.$",
                r"At n = 64, 1 head `b` takes [23]\.\d times as long as the fastest: use `a` there\.$",
            ],
            id="another is faster at one",
        ),
        pytest.param(
            {"torch_eager": FAST, "torch_sdpa": FAST},
            {"kernels": {}},
            [
                r"\*\*No single winner\.\*\* Use `torch_sdpa`: at all 8 sizes it is tied for first\.$",
                r"`torch_sdpa` is tied for first at all 8 sizes, with `torch_eager`:",
            ],
            id="equals: who needs least memory",
        ),
        pytest.param(
            {"a": SLOW, "b": FAST, "bad": lambda w: 1e-9, "worse": SLOW},
            {"wrong": ("bad", "worse")},
            [r"\*\*Use `b`", r"\*\*Do not use `bad` and `worse`\*\*: their results are wrong;"],
            id="wrong ones are named",
        ),
        pytest.param(
            B_WINS,
            {"wrong": ("a", "b")},
            [r"\*\*Use none of these here", r"\*\*Do not use `a` and `b`\*\*: their results are wrong"],
            id="all are wrong",
        ),
        pytest.param({"a": FAST}, {}, [r"\*\*Only `a` has a time\*\*"], id="a single one"),
        pytest.param(
            {"a": FAST, "b": SLOW, "c": lambda w: 40 * FAST(w)},
            {},
            [r"Leave out `c`: wherever measured, it takes (39\.\d to )?40\.\d times as long"],
            id="far behind everywhere",
        ),
        pytest.param(
            B_WINS,
            {"processes": 1},
            [r"\*\*No verdict yet\*\*; `b` has the least median", r"At all 8 sizes nobody could be compared"],
            id="one process of each",
        ),
        pytest.param(
            {"a": SLOW, "magic": lambda w: w.flops / 4e12},
            {},
            [r"\*\*Only `a` has a time"],
            id="above the ceiling",
        ),
    ],
)
def test_the_answer_is_that_of_the_costs(costs, options, expected, made):
    """In its line or one of its sentences, whichever it is about."""
    told = said(made(costs=costs, noise=0.001, **SIZES, **options))
    for pattern in expected:
        assert any(re.match(pattern, one) for one in told), (pattern, told)


def test_two_names_for_one_kernel_are_no_rivals(made):
    costs = {"torch_one": FAST, "torch_two": FAST, "other": SLOW}
    kernels = {"torch_one": "flash_attention", "torch_two": "flash_attention", "other": "some BLAS"}
    for one in analyse(made(costs=costs, kernels=kernels, baseline="other", **SIZES)).won:
        assert one.won.first == ("torch_one",) and one.won.sure is Sure.DECIDED
        assert one.won.ahead.over == one.won.over_baseline.over == "other"
        assert "torch_two" in one.first


def test_a_crossover_is_found_where_it_was_built_in(made):
    # t_a = t_b where 4e-4 = 1e-9 n² heads: n = 632 at 1 head, 316 at 4
    costs = {"a": lambda w: 1e-4 + 2e-9 * w.pairs, "b": lambda w: 5e-4 + 1e-9 * w.pairs}
    run = made(costs=costs, **{**SIZES, "lengths": (64, 128, 256, 512, 1024)})
    analysis = analyse(run)
    found = find_crossovers(analysis, analysis.groups[0])
    for heads, truth in ((1, 632), (4, 316)):
        (one,) = found[heads]
        assert (one.below, one.above) == ("a", "b")
        assert one.low <= one.length <= one.high and one.last_below < one.length < one.first_above
        assert one.length == pytest.approx(truth, rel=0.1)
    assert any(one.startswith("`a` is the faster below, and `b` above, n ≈ 6") for one in said(run))


def disturbed(run, part, names=("a", "b")):
    """The run, with every turn of `names` flagged in which the round is within this part of all."""

    def flagged(one):
        if one.latency is None or one.contender not in names:
            return one
        count = len(one.latency.samples)
        flags = tuple(float(index < part * count) for index in range(count))
        columns = {**one.latency.columns, "disturbed": flags}
        facts = {**one.latency.facts, "others": "1.5 cores, most of it rustc"}
        return replace(one, measurements=(replace(one.latency, columns=columns, facts=facts),))

    run.results = [flagged(one) for one in run.results]
    return run


def test_rounds_that_other_programs_disturbed_give_no_verdict_and_a_warning(made):
    small = {"lengths": (64,), "heads": (1,), "rounds": 30}
    run = disturbed(made(costs=B_WINS, **small), 0.9)
    text = verdict_text(run)
    assert any(
        "other programs used the cores; repeat the run when nothing else runs" in one for one in said(run)
    )
    assert "Warning: Other programs used this machine's cores: 54 of 60 turns had to wait" in text
    assert "(others took up to 1.5 cores, most of it rustc)" in text
    assert "Warning" not in verdict_text(disturbed(made(costs=B_WINS, **small), 0.1))
    one = disturbed(made(costs={"a": SLOW, "b": FAST, "c": lambda w: 1.3 * FAST(w)}, **small), 0.9, ("c",))
    assert any(told.startswith("Somewhere `c` could not be compared") for told in said(one))


def test_a_broken_self_test_is_told_and_widens_the_margin_where_it_failed(made):
    """4 % is below what such a machine tells apart."""
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    options = {"contenders": ("a", "a#2", "b"), "costs": costs, "noise": 0.002, **SIZES}
    run, wild = made(**options), made(second_entry=1.06, **options)
    assert "Warning" not in verdict_text(run) and "a#2" not in verdict_text(run)
    assert "Warning: The self-test failed on 8 of 8 workloads" in verdict_text(wild)
    assert {one.won.sure for one in analyse(wild).won} == {Sure.TIE}
    at = run.plan.workloads[0]
    run.results = [
        *(one for one in wild.results if one.workload == at),
        *(one for one in run.results if one.workload != at),
    ]
    margins = {cell.workload: cell.margin for cell in analyse(run).cells}
    assert 0.055 < margins.pop(at) < 0.065 and set(margins.values()) == {0.01}


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
    sizes = {"lengths": (64, 512), "heads": tuple(range(1, heads + 1)), "ceiling_flops": 1e18}
    given_up = {"noise": noise, "seed": seed, "wrong": ("backend_number_3",)}
    analysis = analyse(synthetic(tmp_path_factory.mktemp("run"), costs=costs, **sizes, **given_up))
    found = answer_of(analysis)
    assert len(found.sentences) <= MOST
    assert all(len(one) <= 260 for one in (found.line, *found.sentences))
    places = analysis.won
    chosen = choose(places, analysis.names)
    for name in analysis.names:
        assert sum(name in one.first for one in places) <= sum(chosen.name in one.first for one in places)
    everywhere = [*chosen.won, *chosen.tied, *chosen.behind, *chosen.absent]
    unsure = (one for one in places if one.won.sure not in (Sure.DECIDED, Sure.TIE))
    assert len(everywhere) + sum(chosen.name in one.first for one in unsure) == len(places)


def test_of_more_sizes_than_can_be_read_an_even_part_is_shown_and_told(made):
    """Its ends are there, and the group itself stays whole."""
    run = made(costs=B_WINS, lengths=tuple(64 * one for one in range(1, 16)), heads=tuple(range(1, 12)))
    analysis = analyse(run)
    (group,) = analysis.groups
    shown = readable(group)
    assert (len(shown.heads), len(shown.lengths)) == (MOST_HEADS, MOST_LENGTHS)
    assert (shown.heads[0], shown.heads[-1], shown.lengths[0], shown.lengths[-1]) == (1, 11, 64, 960)
    assert len(group.cells) == 15 * 11
    part = "are 6 of 11 head counts and 10 of 15 lengths; the tables have all."
    assert verdict_figures.heat_maps(analysis)["winners"].says.endswith(f"Drawn {part}")
    assert answer_of(analysis).groups[0].table.endswith(f"Shown {part}")
