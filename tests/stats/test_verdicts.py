"""A verdict rests on pairs of processes: its interval is Student's over them, and it is what the interval shows."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from process_sets import in_sets, latency

from attnlab.stats.verdicts import ALPHA, CLOSE, LOOK_ALPHA, MARGIN, Kind, Verdict, compare, half_width
from attnlab.workload.result import Measurement

#: one contender's seconds and another's, by process and round
RACES = st.lists(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=7),
    min_size=2,
    max_size=9,
)


def both(race: list[list[tuple[float, float]]]) -> list[Measurement]:
    """The latencies of the two that raced."""
    return [latency([[turn[side] for turn in process] for process in race]) for side in (0, 1)]


@pytest.mark.parametrize(
    ("figures", "close"),
    [
        pytest.param((0.010, 0.014, 0.018, 0.014, 0.010), True, id="near, and its side unknown"),
        pytest.param((0.000, 0.001, -0.001, 0.001, 0.0), True, id="equivalent"),
        pytest.param((0.2, -0.2, 0.1, -0.1, 0.0), False, id="anything is possible"),
        pytest.param((0.030, 0.031, 0.030, 0.031, 0.030), False, id="small, but decided"),
        pytest.param((0.0,), False, id="no interval"),
    ],
)
def test_two_are_close_where_the_interval_shows_that_they_differ_little(
    figures: tuple[float, ...], close: bool
) -> None:
    """Not where it is merely unknown who is faster."""
    verdict = compare(latency([[1.0]] * len(figures)), latency([[math.exp(figure)] for figure in figures]))
    assert verdict.close == close
    assert verdict.low == 0 or verdict.apart == pytest.approx(max(verdict.high, 1 / verdict.low) - 1)


def test_two_looks_at_their_level_err_together_as_often_as_one_at_the_nominal() -> None:
    """Of a normal mean, seen at half its data and at all of it (Pocock 1977, table 1)."""
    from scipy.stats import multivariate_normal, norm

    edge = norm.isf(LOOK_ALPHA / 2)
    both_looks = multivariate_normal([0, 0], [[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    kept = both_looks.cdf([edge, edge], lower_limit=[-edge, -edge])
    assert 1 - kept == pytest.approx(ALPHA, abs=2e-4)


def test_the_interval_is_students_over_the_medians_of_the_pairs() -> None:
    """Computed anew by scipy, from the median log ratio of each pair of processes."""
    from scipy.stats import t

    figures = [0.02, 0.05, 0.01, 0.04]
    other = [[math.exp(figure - 0.3), math.exp(figure), math.exp(figure + 0.7)] for figure in figures]
    verdict = compare(latency([[1.0] * 3] * 4), latency(other), comparisons=3)
    low, high = t.interval(1 - LOOK_ALPHA / 3, 3, statistics.fmean(figures), statistics.stdev(figures) / 2)
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert verdict.ratio == pytest.approx(math.exp(0.03))
    assert verdict.spread == pytest.approx(statistics.stdev(figures))
    assert (verdict.rounds, verdict.processes) == (12, 4)


@pytest.mark.parametrize(
    ("ratio", "kind"),
    [(1.0101, Kind.SLOWER), (1.0099, Kind.EQUIVALENT), (0.991, Kind.EQUIVALENT), (0.99, Kind.FASTER)],
)
def test_a_sharp_ratio_is_judged_by_the_margin(ratio: float, kind: Kind) -> None:
    """1 % either way is equivalent; the lower edge is 1/1.01."""
    verdict = compare(in_sets([1.0] * 30), in_sets([ratio] * 30))
    assert verdict.kind is kind
    assert verdict.processes_needed is None


def races(center: float, spread: float, pairs: int, trials: int = 400) -> list[Verdict]:
    """Verdicts on so many races whose pairs' log ratios have this mean and scatter."""
    figures = np.random.default_rng(pairs).normal(center, spread, (trials, pairs))
    base = latency([[1.0]] * pairs)
    return [compare(base, latency([[math.exp(one)] for one in race])) for race in figures]


@pytest.mark.parametrize(
    ("center", "spread", "kind"),
    [
        pytest.param(0.0, 0.012, Kind.EQUIVALENT, id="equally fast"),
        pytest.param(0.004, 0.012, Kind.EQUIVALENT, id="nearer to one edge of the margin"),
        pytest.param(0.035, 0.04, Kind.SLOWER, id="slower"),
        pytest.param(-0.03, 0.03, Kind.FASTER, id="faster"),
    ],
)
def test_with_the_pairs_that_a_verdict_asks_for_four_races_in_five_are_decided(
    center: float, spread: float, kind: Kind
) -> None:
    """If its mean and its scatter are the true ones; with one pair fewer not that many."""
    figures = [center + (spread if index % 2 else -spread) for index in range(6)]
    asking = compare(latency([[1.0]] * 6), latency([[math.exp(one)] for one in figures]))
    needed = asking.processes_needed
    assert asking.kind is Kind.UNDECIDED and needed is not None and needed > 7
    there, short = (
        statistics.fmean(one.kind is kind for one in races(center, asking.spread, pairs))
        for pairs in (needed, needed - 1)
    )
    assert there > 0.8 - 0.08 and short < 0.8 + 0.08  # four standard errors


@given(st.integers(2, 12), st.floats(0.001, 0.1), st.floats(-0.1, 0.1))
def test_more_pairs_are_asked_for_than_there_are(pairs: int, spread: float, center: float) -> None:
    """Or none, where 200 would not do."""
    figures = [center + (spread if index % 2 else -spread) for index in range(pairs)]
    verdict = compare(latency([[1.0]] * pairs), latency([[math.exp(one)] for one in figures]))
    assume(verdict.kind is Kind.UNDECIDED)
    assert verdict.processes_needed is None or pairs < verdict.processes_needed <= 200


def test_one_pair_of_processes_has_no_interval_however_clear_it_looks() -> None:
    """A hundred rounds of a tenfold difference: the next process may have another speed."""
    one = compare(latency([[1.0] * 100]), latency([[10.0] * 100]))
    assert (one.kind, one.ratio, one.low, one.high) == (Kind.UNDECIDED, pytest.approx(10.0), 0.0, math.inf)
    assert (one.processes, one.rounds, one.processes_needed) == (1, 100, None)
    assert math.isnan(one.spread)
    assert compare(latency([[1.0]] * 2), latency([[10.0]] * 2)).kind is Kind.SLOWER


@given(RACES)
def test_swapping_the_two_inverts_everything(race: list[list[tuple[float, float]]]) -> None:
    """Faster becomes slower, and the interval its inverse."""
    one, other = both(race)
    there, back = compare(one, other), compare(other, one)
    swapped = {Kind.FASTER: Kind.SLOWER, Kind.SLOWER: Kind.FASTER}
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    near = (abs(abs(math.log(edge)) - math.log(1.01)) < 1e-9 for edge in (there.low, there.high))
    assert back.kind is swapped.get(there.kind, there.kind) or any(near)


def test_only_rounds_that_both_took_part_in_are_paired() -> None:
    """A contender that left early is compared over its own rounds."""
    base = latency([[1.0] * 5] * 2 + [[100.0] * 5] * 2)
    early = latency([[2.0] * 5] * 2)
    verdict = compare(base, early)
    assert (verdict.ratio, verdict.rounds, verdict.processes) == (2.0, 10, 2)
    columns = {name: column[10:] for name, column in base.columns.items()}
    late = Measurement("latency", "s", (1.0,) * 10, columns)
    assert compare(base, late).ratio == pytest.approx(0.01)
    with pytest.raises(ValueError, match="share no round"):
        compare(early, late)


def test_a_turn_that_waited_for_a_core_is_never_paired() -> None:
    """Whichever of the two it was; its partner of that round does not count either."""
    base = latency([[1.0, 9.0, 1.0], [1.0] * 3], disturbed=[1])
    other = latency([[2.0] * 3, [2.0, 2.0, 40.0]], disturbed=[5])
    for one, two, ratio in ((base, other, 2.0), (other, base, 0.5)):
        verdict = compare(one, two)
        assert (verdict.ratio, verdict.low, verdict.high) == pytest.approx((ratio,) * 3)
        assert (verdict.rounds, verdict.disturbed, verdict.processes) == (4, 2, 2)


@pytest.mark.parametrize(
    ("scatter", "within", "pairs"),
    [(0.02, CLOSE, 5), (0.02, MARGIN, 51), (0.05, CLOSE, 16), (0.05, MARGIN, 305)],
)
def test_so_many_pairs_mostly_say_that_two_equally_fast_are_so_close(
    scatter: float, within: float, pairs: int
) -> None:
    """Four races in five, as docs/ideas/intervals.md says; with one pair fewer not that many."""

    def share(pairs: int) -> float:
        figures = np.random.default_rng(0).normal(0, scatter, (6000, pairs))
        reach = half_width(1.0, pairs, LOOK_ALPHA) * figures.std(axis=1, ddof=1)
        return float((np.abs(figures.mean(axis=1)) + reach <= math.log1p(within)).mean())

    assert share(pairs) > 0.8 - 0.02 and share(pairs - 1) < 0.8 + 0.02  # four standard errors
