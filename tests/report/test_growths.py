"""The growth chapter on made-up runs whose law is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from attnlab.report import growths, winners
from attnlab.report.analysis import analyse
from attnlab.report.page import render
from attnlab.statistics.crossover import Crossover

SIZES = {"lengths": (64, 128, 256, 512, 1024, 2048), "heads": (1, 4), "rounds": 25, "noise": 0.01}
QUADRATIC = {"a": lambda w: 1e-4 + 1e-9 * w.pairs, "b": lambda w: 2e-4 + 2e-9 * w.pairs}


def chapter(run):
    text = render(analyse(run), {})
    return text[text.index("## Growth") : text.index("## Numerical experiments")]


def sentences(run):
    analysis = analyse(run)
    (group,) = analysis.groups
    return growths.sentences(group, growths.fits(analysis, group))


def test_every_contender_is_held_out_at_every_head_count_with_five_lengths(made):
    text = chapter(made(costs=QUADRATIC, ceiling_flops=1e15, **SIZES))
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    assert len(rows) == 4
    assert all(re.search(r"predicted [\d.]+ .?s, measured [\d.]+ .?s \([+-]\d+ %\)", row) for row in rows)
    assert "4 of 4 fits are good; 4 of 4 predict the longest length within 10 %" in text
    assert "no good fit" not in text.lower().replace('"no good fit"', "")
    few = chapter(made(costs=QUADRATIC, ceiling_flops=1e15, **{**SIZES, "lengths": (64, 128, 256, 512)}))
    assert "predicted" not in few.replace("is predicted by", "")
    assert "with fewer than five lengths none could be held out" in few
    assert "too few to fit" in chapter(made(costs=QUADRATIC, **{**SIZES, "lengths": (64, 128)}))


def test_a_wrong_prediction_is_named_with_its_size(made):
    """A cache that only the longest length leaves: no step can be told from one length, the check tells it."""
    costs = {**QUADRATIC, "b": lambda w: (2e-4 + 2e-9 * w.pairs) * (1.5 if w.keys == 2048 else 1)}
    said = sentences(made(costs=costs, ceiling_flops=1e15, **{**SIZES, "heads": (4,)}))[0]
    assert "1 of 2 predict the longest length" in said
    assert re.search(
        r"Furthest off is `b` at n = 2048, 4 heads: predicted .*, measured .* \(\+(4\d|5\d) %\)", said
    )


def test_a_step_is_said_with_the_score_matrix_on_both_sides(made):
    costs = {**QUADRATIC, "b": lambda w: 2e-5 + (4e-9 if w.keys > 512 else 2e-9) * w.pairs}
    run = made(costs=costs, ceiling_flops=1e15, **{**SIZES, "heads": (4,)})
    (said,) = [one for one in sentences(run) if "a pair costs" in one]
    assert re.match(r"`b` at 4 heads: a pair costs (1\.9|2\.0|2\.1) times as much from n = 1024 ", said)
    assert "(score matrix 16.0 MiB) as up to n = 512 (4.00 MiB)" in said
    assert re.search(r"ns to n = 512, .*ns\] from 1024", chapter(run))


@pytest.mark.parametrize("which", ["skips", "computes all"])
def test_who_skips_what_a_window_hides_is_told_apart_by_the_times(made, which):
    costs = {
        "skips": lambda w: 1e-4 + 1e-8 * w.pairs,
        "computes all": lambda w: 1e-4 + 1e-9 * w.heads * w.keys**2,
    }
    window = ({"causal": "bottom_right", "window": (63, 0)},)
    sizes = {**SIZES, "heads": (16,)}
    run = made(costs={which: costs[which]}, variants=window, ceiling_flops=1e15, **sizes)
    said = [one for one in sentences(run) if "follow the pairs" in one]
    assert bool(said) == (which == "skips")
    assert "1 of 1 fit is good; 1 of 1 predict" in chapter(run)


def test_a_machine_that_changed_its_speed_is_named(made):
    run = made(costs=QUADRATIC, ceiling_flops=1e15, **SIZES)
    assert not any("own speed" in one for one in sentences(run))

    def slowed(result):
        latency = result.latency
        columns = {**latency.columns, "calibration_s": tuple(8e-4 for _ in latency.samples)}
        return replace(result, measurements=(replace(latency, columns=columns),))

    run.results = [slowed(one) if one.workload.keys == 128 else one for one in run.results]
    (said,) = [one for one in sentences(run) if "own speed" in one]
    assert "800 µs beside n = 128 and 500 µs beside n = " in said


def test_a_pair_that_changes_places_at_some_head_counts_is_said_to_at_no_other(made, monkeypatch):
    analysis = analyse(made(costs=QUADRATIC, ceiling_flops=1e15, **SIZES))
    found = {1: [], 4: [Crossover("a", "b", 300.0, 256.0, 400.0, 256, 512)]}
    monkeypatch.setattr(winners, "find_crossovers", lambda *_: found)
    (said,) = winners.crossings(analysis, analysis.groups[0])
    assert said.endswith("n ≈ 300 [260, 400] at 4 heads; none in the range is decided at 1 head.")
