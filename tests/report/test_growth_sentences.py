"""The growth chapter on made-up runs whose law is known."""

from __future__ import annotations

import re

import pytest

from attnlab.judge.growth import Fitting
from attnlab.report.analysis import analyse
from attnlab.report.formats import content_of, render
from attnlab.report.sentences import growth as growth_sentences

SIZES = {"lengths": (64, 128, 256, 512, 1024, 2048), "heads": (1, 4), "rounds": 25, "noise": 0.01}
QUADRATIC = {"a": lambda w: 1e-4 + 1e-9 * w.pairs, "b": lambda w: 2e-4 + 2e-9 * w.pairs}


def chapter(run):
    text = render(content_of(run), {})
    return text[text.index("## Time") : text.index("## Memory")]


def rows(run):
    return dict(content_of(run).tables())["growth"]


def sentences(run):
    analysis = analyse(run)
    (group,) = analysis.groups
    return growth_sentences(group, Fitting(analysis).found[0])


def test_every_contender_is_held_out_at_every_head_count_with_five_lengths(made):
    run = made(costs=QUADRATIC, ceiling_flops=1e15, **SIZES)
    found = rows(run)
    assert len(found) == 4
    for row in found:
        assert row["leading"] == "quadratic" and row["c_low"] <= row["c"] <= row["c_high"]
        assert row["held_out_length"] == 2048
        assert row["held_out_predicted"] == pytest.approx(row["held_out_measured"], rel=0.1)
    assert "4 of 4 fits are good; 4 of 4 predict the longest length within 10 %" in chapter(run)
    few = made(costs=QUADRATIC, ceiling_flops=1e15, **{**SIZES, "lengths": (64, 128, 256, 512)})
    assert all(row["held_out_predicted"] is None for row in rows(few))
    assert "with fewer than five lengths none could be held out" in chapter(few)


def test_a_step_is_said_with_the_score_matrix_on_both_sides(made):
    costs = {**QUADRATIC, "b": lambda w: 2e-5 + (4e-9 if w.keys > 512 else 2e-9) * w.pairs}
    run = made(costs=costs, ceiling_flops=1e15, **{**SIZES, "heads": (4,)})
    (said,) = [one for one in sentences(run) if "a pair costs" in one]
    assert re.match(r"`b` at 4 heads: a pair costs (1\.9|2\.0|2\.1) times as much from n = 1024 ", said)
    assert "(score matrix 16.0 MiB) as up to n = 512 (4.00 MiB)" in said
    row = next(row for row in rows(run) if row["contender"] == "b")
    assert row["step_from"] == 1024 and 1.8 < row["c"] / row["c_below_step"] < 2.2
