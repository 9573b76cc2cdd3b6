"""Intervals cover as they say, and a verdict is what its interval shows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.contract.result import Measurement
from attnlab.statistics import pairing
from attnlab.statistics.pairing import ALPHA, Kind, compare, disturbed_rounds, interval_rank, least_rounds


def latency(samples: list[float], rounds: list[int] | None = None) -> Measurement:
    """Samples of these rounds, by default of all from 0."""
    return Measurement(
        "latency", "s", tuple(samples), {"round": tuple(map(float, rounds or range(len(samples))))}
    )


@given(st.integers(1, 3000), st.sampled_from([0.05, 0.025, 0.05 / 7, 0.5, 1e-6]))
def test_the_rank_is_the_largest_that_the_binomial_allows(rounds: int, alpha: float) -> None:
    """P(Bin(m, 1/2) <= k - 1) <= alpha/2, by scipy; at every m, also beyond what floats hold as 2^m."""
    from scipy.stats import binom

    rank = interval_rank(rounds, alpha)
    allowed = alpha / 2
    if rank:
        assert binom.cdf(rank - 1, rounds, 0.5) <= allowed * (1 + 1e-9)
    if rank < rounds // 2:
        assert binom.cdf(rank, rounds, 0.5) > allowed * (1 - 1e-9)


@pytest.mark.parametrize(("comparisons", "rounds"), [(1, 6), (2, 7), (3, 7), (8, 9), (20, 10)])
def test_the_least_rounds_for_an_interval(comparisons: int, rounds: int) -> None:
    """All on one side of the median has probability 2^-m a side."""
    assert least_rounds(comparisons) == rounds
    assert 2 * 0.5**rounds <= ALPHA / comparisons < 2 * 0.5 ** (rounds - 1)


@pytest.mark.parametrize("rounds", [9, 30, 51])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(rounds: int) -> None:
    """Skewed noise with rare large disturbances, 1500 trials: misses stay under the nominal 5 %."""
    generator = random.Random(rounds)
    true, misses, trials = 1.3, 0, 1500

    def noise() -> float:
        return math.exp(generator.expovariate(20) + (generator.random() < 0.05) * generator.random())

    for _ in range(trials):
        base = [noise() for _ in range(rounds)]
        # both sides draw from one law, so that the median of the log-ratio is log(true)
        other = [true * noise() for _ in range(rounds)]
        verdict = compare(latency(base), latency(other))
        misses += not verdict.low <= true <= verdict.high
    assert misses / trials < ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


def test_drift_of_the_machine_cancels() -> None:
    """Both slow down by a factor of ten over the run; the ratio stays."""
    drift = [1.0 + index * 9 / 29 for index in range(30)]
    verdict = compare(latency(drift), latency([2 * one for one in drift]))
    assert verdict.ratio == pytest.approx(2.0)
    assert verdict.low == pytest.approx(verdict.high)


@pytest.mark.parametrize(
    ("ratio", "kind"),
    [
        (1.02, Kind.SLOWER),
        (1.0101, Kind.SLOWER),
        (1.0099, Kind.EQUIVALENT),
        (1.0, Kind.EQUIVALENT),
        (0.991, Kind.EQUIVALENT),
        (0.99, Kind.FASTER),
        (0.5, Kind.FASTER),
    ],
)
def test_a_sharp_ratio_is_judged_by_the_margin(ratio: float, kind: Kind) -> None:
    """1 % either way is equivalent; the lower edge is 1/1.01."""
    verdict = compare(latency([1.0] * 30), latency([ratio] * 30))
    assert verdict.kind is kind
    assert verdict.rounds_needed is None


def test_an_interval_across_an_edge_is_undecided_and_says_how_many_rounds_would_decide() -> None:
    """More than it had."""
    noisy = [1.0 + 0.05 * math.sin(index) for index in range(40)]
    verdict = compare(latency([1.0] * 40), latency(noisy))
    assert verdict.kind is Kind.UNDECIDED
    assert verdict.low < 1 / 1.01 < 1.01 < verdict.high
    assert verdict.rounds_needed is not None and verdict.rounds_needed > 40


def test_too_few_rounds_have_no_interval_however_clear_they_look() -> None:
    """Five tenfold differences decide nothing at 5 %; six do."""
    few = compare(latency([1.0] * 5), latency([10.0] * 5))
    assert (few.kind, few.low, few.high, few.rounds_needed) == (Kind.UNDECIDED, 0.0, math.inf, 6)
    assert compare(latency([1.0] * 6), latency([10.0] * 6)).kind is Kind.SLOWER
    assert compare(latency([1.0] * 6), latency([10.0] * 6), comparisons=2).kind is Kind.UNDECIDED


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=9, max_size=60))
def test_swapping_the_two_inverts_everything(pairs: list[tuple[float, float]]) -> None:
    """Faster becomes slower, and the interval its inverse."""
    one, other = (latency([pair[side] for pair in pairs]) for side in (0, 1))
    there, back = compare(one, other), compare(other, one)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    assert there.low <= there.ratio * (1 + 1e-12) and there.ratio <= there.high * (1 + 1e-12)


def test_only_rounds_that_both_took_part_in_are_paired() -> None:
    """A contender that left early is compared over its own rounds."""
    base = latency([1.0] * 10 + [100.0] * 10)
    early = latency([2.0] * 10)
    verdict = compare(base, early)
    assert (verdict.ratio, verdict.rounds) == (2.0, 10)
    late = latency([1.0] * 10, list(range(10, 20)))
    assert compare(base, late).ratio == pytest.approx(0.01)
    with pytest.raises(ValueError, match="share no undisturbed round"):
        compare(early, late)


def test_a_disturbed_round_is_left_out_whole_and_counted() -> None:
    """Whatever the two took in it."""
    base, other = [1.0] * 12, [2.0] * 12
    base[3] = other[7] = 50.0
    verdict = compare(latency(base), latency(other), disturbed={3, 7, 99})
    assert (verdict.ratio, verdict.low, verdict.high) == (2.0, 2.0, 2.0)
    assert (verdict.rounds, verdict.disturbed) == (10, 2)


def test_on_a_quiet_machine_a_round_is_disturbed_beyond_ten_per_cent_off_the_median() -> None:
    """Slower or faster; the median itself is not moved by a few."""
    calibration = dict(enumerate([1.0, 1.09, 0.91, 1.11, 0.89, 1.0, 5.0, *[1.0] * 7]))
    assert disturbed_rounds(calibration) == {3, 4, 6}
    assert disturbed_rounds({}) == set()


def test_on_a_noisy_machine_a_round_is_disturbed_beyond_three_robust_deviations() -> None:
    """Where all scatter by over ten per cent none stands out for it: 1.4826 of 0.1, three times, is 0.445."""
    scattered = [0.8, 0.9, 1.0, 1.1, 1.2] * 4
    assert disturbed_rounds(dict(enumerate(scattered))) == set()
    assert disturbed_rounds(dict(enumerate([*scattered, 1.44, 0.56]))) == set()
    assert disturbed_rounds(dict(enumerate([*scattered, 1.45, 0.55]))) == {20, 21}


def test_the_calibration_of_a_race_is_gathered_from_all_its_latencies() -> None:
    """One contender may have left early."""

    def with_calibration(rounds: list[int]) -> Measurement:
        columns = {"round": tuple(map(float, rounds)), "calibration_s": tuple(0.5 + one for one in rounds)}
        return Measurement("latency", "s", (1.0,) * len(rounds), columns)

    found = pairing.calibration_of([with_calibration([0, 1]), with_calibration([1, 2])])
    assert found == {0: 0.5, 1: 1.5, 2: 2.5}
