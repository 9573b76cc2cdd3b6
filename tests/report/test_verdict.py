"""The verdict says what the data say, and no more: its line, its table, its sentences."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from synthetic import disturbed

from attnlab.report import verdict_text
from attnlab.report.analysis import NO_TURN, analyse
from attnlab.report.answer import answer_of
from attnlab.report.formats import content_of, draw, render
from attnlab.stats.ranking import Sure

FAST, SLOW = (lambda w: 1e-4 + 1e-9 * w.pairs), (lambda w: 2e-4 + 2e-9 * w.pairs)
B_WINS = {"a": SLOW, "b": FAST}
SIZES = {"lengths": (64, 128, 256, 512), "heads": (1, 4), "rounds": 31}


def said(run):
    """The line, and the sentences below it."""
    found = answer_of(analyse(run))
    return [found.line, *found.sentences]


BEATEN = {"a": SLOW, "b": FAST, "bad": lambda w: 1e-9, "worse": SLOW}
ALL = r"`b` is decidedly the fastest at all 8 sizes, [\d.]+( to [\d.]+)? times as fast as the next\.$"


@pytest.mark.parametrize(
    ("costs", "options", "expected"),
    [
        (B_WINS, {}, [r"\*\*Use `b`\*\*: nothing is decidedly faster at any of 8 sizes\.$", ALL]),
        (
            {"torch_eager": FAST, "torch_sdpa": FAST},
            {"kernels": {}},
            [r"\*\*No single winner\.\*\* Use `torch_sdpa`"],
        ),
        (BEATEN, {"wrong": ("bad", "worse")}, [r"\*\*Use `b`", r"\*\*Do not use `bad` and `worse`\*\*"]),
        ({"a": FAST}, {}, [r"\*\*Only `a` has a time\*\*"]),
        (B_WINS, {"processes": 1}, [r"\*\*No verdict yet\*\*; `b` has the least median"]),
        ({"a": SLOW, "magic": lambda w: w.flops / 4e12}, {}, [r"\*\*Only `a` has a time"]),
    ],
)
def test_the_answer_is_that_of_the_costs(costs, options, expected, made):
    """In its line or one of its sentences, whichever it is about."""
    told = said(made(costs=costs, noise=0.001, **SIZES, **options))
    for pattern in expected:
        assert any(re.match(pattern, one) for one in told), (pattern, told)


def test_a_crossover_is_said_where_it_was_built_in(made):
    """t_a = t_b where 4e-4 = 1e-9 n² heads: n = 632 at 1 head, 316 at 4."""
    costs = {"a": lambda w: 1e-4 + 2e-9 * w.pairs, "b": lambda w: 5e-4 + 1e-9 * w.pairs}
    run = made(costs=costs, **{**SIZES, "lengths": (64, 128, 256, 512, 1024)})
    for row, truth in zip(dict(content_of(run).tables())["crossovers"], (632, 316), strict=True):
        assert (row["below"], row["above"]) == ("a", "b") and row["low"] <= row["length"] <= row["high"]
        assert row["length"] == pytest.approx(truth, rel=0.1)
    assert any(one.startswith("`a` is the faster below, and `b` above, n ≈ 6") for one in said(run))


@pytest.mark.parametrize("lengths", [(64, 128, 256, 512, 1024, 2048), (64, 128, 256, 512)])
def test_the_longest_of_five_lengths_is_held_out_from_every_fit(made, lengths):
    options = {"lengths": lengths, "heads": (1, 4), "rounds": 25, "noise": 0.01, "ceiling_flops": 1e15}
    content = content_of(made(costs={"a": FAST, "b": SLOW}, **options))
    found = dict(content.tables())["growth"]
    assert len(found) == 4
    for row in found:
        assert row["leading"] == "quadratic" and row["c_low"] <= row["c"] <= row["c_high"]
        if len(lengths) > 4:
            assert row["held_out_length"] == 2048
            assert row["held_out_predicted"] == pytest.approx(row["held_out_measured"], rel=0.1)
    met = "4 of 4 fits are good. Made without the longest length, 4 of 4 fits come within 10 % of it"
    text = render(content, {})
    assert (met if len(lengths) > 4 else "with fewer than five lengths none could be held out") in text


def test_rounds_that_other_programs_disturbed_give_no_verdict_and_a_warning(made):
    small = {"lengths": (64,), "heads": (1,), "rounds": 30}
    run = disturbed(made(costs=B_WINS, **small), lambda n, turn, process: turn < 27)
    text = verdict_text(run)
    assert any("other programs used the cores; repeat the run" in one for one in said(run))
    assert "Warning: Other programs used this machine's cores: 54 of 60 turns had to wait" in text
    seldom = disturbed(made(costs=B_WINS, **small), lambda n, turn, process: turn < 3)
    assert "Warning" not in verdict_text(seldom)


def test_a_run_of_which_no_turn_counts_says_that_alone(made):
    """No contender, no ratio and no time, in words, tables and figures; memory and precision stay as measured."""
    costs = {"a": FAST, "slow": lambda w: 93 * FAST(w)}
    run = disturbed(made(costs=costs, contenders=("a", "a#2", "slow"), **SIZES), lambda *turn: True)
    line, *further = said(run)
    assert line.startswith("**No verdict: no turn counts.**") and not further and not run.judged().won
    content, told = content_of(run), verdict_text(run)
    found = dict(content.tables())
    assert "Warning" not in told
    assert not {"winners", "measurements", "growth", "self_test", "setup"} & found.keys()
    assert {row["outcome"] for row in found["results"]} == {"failed measurement"}
    assert not any(row["median_s"] or row["over_fastest"] or row["flops_per_s"] for row in found["results"])
    text = render(content, {}).partition("## Numer")[0]
    assert not re.search(r"times as|leave out|\d (s|ms|µs|ns)\b", text, re.I)
    assert not {"latency", "trailing", "ceiling", "winners"} & draw(content.analysis).keys()


def test_who_has_no_turn_that_counts_has_no_place_and_others_keep_theirs(made):
    """Not the fastest by turns that do not count, though all of its median is: it is left out, and that is said."""
    costs = {"a": SLOW, "b": FAST, "c": lambda w: 3 * SLOW(w)}
    run = made(costs=costs, noise=0.001, **SIZES)
    mine, others = ([one for one in run.results if (one.contender == "b") is its] for its in (True, False))
    run.results = others + disturbed(replace(run, results=mine), lambda *turn: True).results
    content = content_of(run)
    assert said(run)[0].startswith("**Use `a`**") and not any("`b`" in one for one in said(run))
    assert "Of 8 measurements no turn counts" in verdict_text(run)
    rows = [row for row in dict(content.tables())["results"] if row["contender"] == "b"]
    assert len(rows) == 8 and all(row["median_s"] is None and NO_TURN in row["reason"] for row in rows)


def test_memory_that_could_not_be_measured_is_a_warning_with_its_reason(made):
    run = made(costs=B_WINS, memory=False, lengths=(64,), heads=(1,))
    assert "memory" not in verdict_text(run)
    note = "peak memory could not be measured: no tracer"
    run.results = [replace(one, reason=f"its {note}") for one in run.results]
    assert f"Warning: Of {len(run.results)} results the {note}." in verdict_text(run)


def test_nothing_is_advised_against_without_an_interval(made):
    """93 times as long in one process says that it was slow there."""
    costs = {"a": FAST, "slow": lambda w: 93 * FAST(w)}
    for processes in (1, 5):
        told = said(made(costs=costs, processes=processes, noise=0.001, **SIZES))
        assert any("Leave out `slow`" in one for one in told) == (processes > 1)


def test_a_broken_self_test_is_told_and_widens_the_margin_where_it_failed(made):
    """4 % is below what such a machine tells apart."""
    costs = {"a": FAST, "b": lambda w: 1.04 * FAST(w)}
    options = {"contenders": ("a", "a#2", "b"), "costs": costs, "noise": 0.002, **SIZES}
    run, wild = made(**options), made(second_entry=1.06, **options)
    assert "Warning" not in verdict_text(run) and "a#2" not in verdict_text(run)
    assert "Warning: The self-test failed on 8 of 8 workloads" in verdict_text(wild)
    assert {one.won.sure for one in analyse(wild).won} == {Sure.TIE}
