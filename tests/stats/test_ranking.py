"""Rankings, winners, controls, groups, speeds and sittings, on samples with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from process_sets import latency, measured

from attnlab.stats.analysis import analyse, grouped
from attnlab.stats.intervals import BETWEEN, Sitting, between_sittings, compare, over_sittings, speeds
from attnlab.stats.ranking import Sure, implementation_of, rank, winner
from attnlab.workload.workload import Workload

WORKLOAD = Workload(heads=4, queries=256, keys=256)


def test_first_place_leaves_out_the_truly_fastest_in_at_most_one_run_in_twenty():
    """Six contenders that differ by less than the noise: the hardest case for choosing a winner."""
    generator, lost = np.random.default_rng(1), 0
    truth = 1e-3 * np.exp(0.004 * np.arange(6))
    for _ in range(100):
        samples = truth[:, None] * np.exp(generator.normal(0, 0.02, (6, 31)))
        ranking = rank({f"c{i}": measured(f"c{i}", row) for i, row in enumerate(samples)}, baseline="c5")
        lost += "c0" not in {one.contender for one in ranking.first}
    assert lost / 100 <= 0.05


def test_the_one_that_is_ahead_visit_by_visit_stands_first_though_its_median_is_not_the_least():
    """`a` has the smaller median and is faster in three visits of five. In the others `b` takes a third of its time."""
    a = measured("a", np.repeat([1.0, 1.0, 1.0, 3.0, 3.0], 6))
    b = measured("b", np.full(30, 1.1))
    found = winner(rank({"a": a, "b": b}, baseline="a"))
    assert found.sure is Sure.TIE and found.name == "b"
    assert found.ahead.over == "a" and found.ahead.low < 1 < found.ahead.ratio < found.ahead.high


def test_one_kernel_of_one_library_is_one_implementation_and_settings_make_another():
    def ran(name, kernel="flash_attention", library="torch"):
        return implementation_of(measured(name, [1.0], kernel=kernel, library=library))

    # a user's file may have any name: what counts is the library that it is written for
    assert ran("torch_a") == ran("my_sdpa") == ran("torch_a#2")
    assert ran("torch_a") != ran("torch_b", library="jax")
    assert ran("torch_a") != ran("torch_a[threads=1]")
    assert ran("torch_a", "openblas Haswell") != ran("torch_b", "openblas Haswell")
    assert ran("torch_a", None) != ran("torch_b", None)
    # stored before libraries were recorded: each backend is an implementation of its own
    assert ran("torch_a", library=None) != ran("torch_b", library=None)


def test_a_control_that_differs_widens_the_margin_where_it_was_seen():
    other = WORKLOAD.with_(keys=512)
    results = [
        measured(name, np.full(30, seconds), workload=workload)
        for workload, second in ((WORKLOAD, 1.1), (other, 1.001))
        for name, seconds in (("a", 1.0), ("a#2", second), ("b", 2.0))
    ]
    found = analyse(results, baseline="a")
    assert [(one.differs, round(one.deviation, 3)) for one in found.controls] == [(True, 0.1), (False, 0.001)]
    assert [round(cell.margin, 3) for cell in found.cells] == [0.1, 0.01]
    assert found.names == ("a", "b") and {cell.won.name for cell in found.cells} == {"a"}


def test_workloads_that_differ_in_more_than_heads_and_length_are_groups():
    one = WORKLOAD.with_(heads=8, kv_heads=8)
    shared, groups = grouped(dict.fromkeys([WORKLOAD, one, one.with_(keys=512, queries=512)], ""))
    assert [(name, len(members)) for name, members in groups] == [("", 3)] and "float32" in shared
    causal = WORKLOAD.with_(causal="top_left")
    _, groups = grouped({WORKLOAD: "", causal: "", WORKLOAD.with_(dtype="float64"): ""})
    assert [name for name, _ in groups] == ["float32", "float32 causal", "float64"]
    few = [WORKLOAD.with_(batch=16 // n, keys=256 * n, queries=256 * n) for n in (1, 2, 4)]
    shared, groups = grouped(dict.fromkeys(few, "preset/training"))
    assert len(groups) == 1, "the batch follows from the number of tokens"


@pytest.mark.parametrize(
    ("visits", "count"),
    [
        pytest.param((1.0, 1.5, 1.0, 1.5, 1.0, 1.5), 2, id="two speeds by turns"),
        pytest.param((1.0, 1.5, 1.0, 1.5, 1.0, 1.0), 1, id="met twice"),
        pytest.param((1.0, 1.3, 1.1, 1.5, 1.2, 1.4), 1, id="spread evenly"),
        pytest.param((1.0, 1.1) * 3, 1, id="less than twelve per cent apart"),
        pytest.param((1.0, 1.0, 1.0, 1.5, 1.5, 1.5), 1, id="the machine slowed down once"),
    ],
)
def test_two_speeds_are_two_groups_of_visits_that_stand_apart(visits, count):
    found = speeds(measured("a", np.repeat(visits, 6)).latency)
    assert len(found) == count and found[0].seconds <= found[-1].seconds


def test_one_that_left_early_is_not_what_all_are_compared_with():
    """It was fast by chance in its only visit, and shares no other visit with those that stayed."""
    slow, quick = np.repeat([1.3, 1.32, 1.28, 1.3], 6), np.repeat([1.0, 1.02, 0.98, 1.0], 6)
    race = {name: measured(name, one) for name, one in (("a", slow), ("b", quick), ("left", np.full(6, 0.9)))}
    ranking = rank(race, baseline="a")
    assert ranking.best.contender == "b" and ranking.of("a").against_best.visits == 4


def test_a_name_that_left_early_stands_for_its_kernel_unless_it_is_slower():
    """Two names of one fused kernel do not compete. The first in the order of the run is named."""
    noise = 1 + 0.02 * np.resize([-1, 0, 1, 0, 1, -1], 24)
    for early, named in ((1.01, "own"), (2.0, "alias")):
        race = {
            "own": measured("own", early * noise[:6], kernel="flash attention", library="torch"),
            "alias": measured("alias", noise, kernel="flash attention", library="torch"),
            "other": measured("other", 1.5 * noise[::-1]),
        }
        assert winner(rank(race, baseline="other"), ["own", "alias", "other"]).first == (named,)


def test_who_is_no_rival_takes_nothing_of_the_error_that_rivals_share():
    """A second name of the winner's kernel takes nothing, and does not lead by luck. A rival takes its share."""
    noise, fused = (
        1 + 0.02 * np.resize([-1, 0, 1, 0, 1, -1], 12),
        {"kernel": "flash attention", "library": "torch"},
    )
    race = {"own": measured("own", noise, **fused), "other": measured("other", 1.1 * noise[::-1])}
    others = {"alias": measured("alias", 0.99 * noise, **fused), "rival": measured("rival", noise[::-1])}
    found = [
        rank(race | {name: others[name] for name in some}, baseline="own")
        for some in ((), ("alias",), ("rival",))
    ]
    alone, alias, rival = (one.of("other").against_best.low for one in found)
    assert found[1].best.contender == "own" and alone == alias > rival


def test_the_runner_up_stands_second_under_the_name_of_its_kernel():
    """This holds even if another name of that kernel, and a third contender, were faster by chance."""
    wild, fused = np.repeat([1.1, 0.9, 1.1, 0.9], 6), {"kernel": "flash attention", "library": "torch"}
    race = {"best": measured("best", np.ones(24)), "third": measured("third", 1.02 * wild)}
    race |= {name: measured(name, by * wild, **fused) for name, by in (("own", 1.03), ("alias", 1.01))}
    found = winner(rank(race, baseline="best"), ["best", "own", "alias", "third"])
    assert found.first[:2] == ("best", found.ahead.over) == ("best", "own") and found.sure is Sure.TIE
    assert found.aliases == {"alias": "own"}


def sittings(means, error=0.02, freedom=7):
    return [Sitting(f"2026-01-0{at + 1}", one, error, freedom, 5) for at, one in enumerate(means)]


def test_one_sitting_is_widened_by_what_sittings_differ_by():
    """A second sitting that agrees narrows the interval. One that contradicts the first widens it."""
    alone = compare(latency([[1.0, 1.1, 1.0, 1.1]] * 5), latency([[1.5, 1.6, 1.5, 1.6]] * 5))
    first = over_sittings(alone, sittings([math.log(alone.ratio)], alone.spread / math.sqrt(5)), 0.1)
    assert first.ratio == pytest.approx(alone.ratio) and first.low < alone.low < alone.high < first.high
    # 2.228 is Student's quantile for ten degrees: more than the 4 of the error, or the 8 of the scatter of sittings
    known = over_sittings(alone, sittings([0.0], 0.03, 4), 0.03)
    assert math.log(known.high) == pytest.approx(2.228 * 0.03 * 2**0.5, rel=1e-3)
    agreed, apart = (over_sittings(alone, sittings(means), 0.02) for means in ([0.4] * 2, [0.4, 0.8]))
    assert agreed.high / agreed.low < apart.high / apart.low and apart.low < math.exp(0.5)
    assert agreed.ratio == pytest.approx(math.exp(0.4)) and apart.ratio == pytest.approx(math.exp(0.6))


@pytest.mark.parametrize("true", [0.01, 0.05])
def test_the_interval_over_sittings_covers(true):
    """It covers in 95 % of draws, if the scatter between sittings was seen on other questions."""
    generator, covered, told = np.random.default_rng(5), 0, compare(*[latency([[1.0, 2.0]] * 3)] * 2)
    for _ in range(300):
        seen = [sittings(generator.normal(0, math.hypot(true, 0.02), 6)) for _ in range(3)]
        drawn = sittings(generator.normal(0, math.hypot(true, 0.02), 4))
        found = over_sittings(told, drawn, between_sittings(seen))
        covered += found.low <= 1 <= found.high
    assert covered / 300 >= 0.91
    assert between_sittings([]) == between_sittings([sittings([5.0])]) == BETWEEN
