"""A verdict rests on visits: its interval is Student's over them, it follows from the interval, and is rarely wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from process_sets import ROUNDS, in_sets, latency, measured

from attnlab.stats.intervals import (
    ALPHA,
    EARLY_ALPHA,
    EARLY_MARGIN,
    MARGIN,
    Kind,
    compare,
    verdicts_against,
)
from attnlab.workload.result import Measurement

#: the seconds of two contenders in the rounds of a visit; a race is a list of visits
VISIT = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=7)
RACES = st.lists(VISIT, min_size=2, max_size=9)


def both(race: list[list[tuple[float, float]]]) -> list[Measurement]:
    """The latencies of the two contenders."""
    return [latency([[turn[side] for turn in visit] for visit in race]) for side in (0, 1)]


def test_the_interval_is_students_over_the_medians_of_the_visits() -> None:
    """Compared with scipy. The scatter of the rounds counts as two further visits, if a visit has several rounds."""
    from scipy.stats import t

    figures = [0.02, 0.05, 0.01, 0.04]
    offsets = np.array([-0.3, 0.0, 0.3])
    other = [np.exp(figure + offsets).tolist() for figure in figures]
    expected = math.sqrt((2 * 1.4**2 / 3 * 0.09 + 3 * statistics.variance(figures)) / 5)
    for rounds, freedom, spread in (
        (other, 5, expected),
        ([one[1:2] for one in other], 3, statistics.stdev(figures)),
    ):
        verdict = compare(latency([[1.0] * len(rounds[0])] * 4), latency(rounds), comparisons=3)
        low, high = t.interval(1 - ALPHA / 3, freedom, statistics.fmean(figures), spread / 2)
        assert (verdict.low, verdict.high) == pytest.approx((math.exp(low), math.exp(high)))
        assert verdict.ratio == pytest.approx(math.exp(0.03)) and verdict.spread == pytest.approx(spread)
        assert (verdict.freedom, verdict.visits, verdict.no_interval) == (freedom, 4, None)


@pytest.mark.parametrize(
    ("ratio", "kind"),
    [(1.0101, Kind.SLOWER), (1.0099, Kind.EQUIVALENT), (0.991, Kind.EQUIVALENT), (0.99, Kind.FASTER)],
)
def test_a_sharp_ratio_is_judged_by_the_margin(ratio: float, kind: Kind) -> None:
    """A difference of 1 % in either direction is equivalent; the lower edge is 1/1.01."""
    verdict = compare(in_sets([1.0] * 30), in_sets([ratio] * 30))
    assert verdict.kind is kind


def test_one_visit_has_a_wide_interval_and_few_rounds_have_none() -> None:
    """The next process may have another speed. Only the scatter of the rounds indicates how different it may be."""
    rounds = [1.0, 1.1, 1.0, 1.1]
    one = compare(latency([[1.0] * 4]), latency([[10.0 * each for each in rounds]]))
    assert (one.kind, one.visits, one.freedom) == (Kind.SLOWER, 1, 2) and one.high / one.low > 1.2
    few = compare(latency([[1.0] * 2]), latency([[10.0, 11.0]]))
    assert (few.kind, few.low, few.high, few.no_interval) == (Kind.UNDECIDED, 0.0, math.inf, "few rounds")
    assert compare(latency([[1.0]] * 3), latency([[10.0], [11.0], [10.0]])).kind is Kind.SLOWER


@settings(max_examples=40)
@given(RACES)
def test_swapping_the_two_inverts_everything(race: list[list[tuple[float, float]]]) -> None:
    """Faster becomes slower, and the ends of the interval are inverted."""
    one, other = both(race)
    there, back = compare(one, other), compare(other, one)
    swapped = {Kind.FASTER: Kind.SLOWER, Kind.SLOWER: Kind.FASTER}
    assert back.ratio == pytest.approx(1 / there.ratio) and back.no_interval == there.no_interval
    assume(there.low > 0)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    near = (abs(abs(math.log(edge)) - math.log(1.01)) < 1e-9 for edge in (there.low, there.high))
    assert back.kind is swapped.get(there.kind, there.kind) or any(near)


def test_only_rounds_that_both_took_part_in_undisturbed_are_paired() -> None:
    """A contender that left early is compared over its own rounds. A disturbed turn of either one drops the round."""
    base = latency([[1.0] * 5] * 2 + [[100.0] * 5] * 2)
    early = latency([[2.0] * 5] * 2)
    verdict = compare(base, early)
    assert (verdict.ratio, verdict.rounds, verdict.visits) == (2.0, 10, 2)
    late = Measurement("latency", "s", (1.0,) * 10, {name: one[10:] for name, one in base.columns.items()})
    with pytest.raises(ValueError, match="share no round"):
        compare(early, late)
    base = latency([[1.0, 9.0, 1.0], [1.0] * 3], disturbed=[1])
    other = latency([[2.0] * 3, [2.0, 2.0, 40.0]], disturbed=[5])
    for one, two, ratio in ((base, other, 2.0), (other, base, 0.5)):
        verdict = compare(one, two)
        assert (verdict.ratio, verdict.low, verdict.high) == pytest.approx((ratio,) * 3)
        assert (verdict.rounds, verdict.disturbed, verdict.visits) == (4, 2, 2)
    nothing = compare(latency([[1.0, 1.0]], disturbed=[0, 1]), latency([[2.0, 2.0]]))
    assert nothing.no_interval == "disturbed" and nothing.kind is Kind.UNDECIDED


# -- how often a verdict is wrong, with all looks of a comparison --------------------------------------

Array = NDArray[np.float64]
#: log seconds of two identical contenders, (2, visits, rounds)
Noise = Callable[[np.random.Generator, int, int], Array]
SCATTER, TRIALS = 0.03, 150


def independent(generator: np.random.Generator, visits: int, rounds: int) -> Array:
    """Every turn is independent."""
    return generator.normal(0, SCATTER, (2, visits, rounds))


def heavy_tailed(generator: np.random.Generator, visits: int, rounds: int) -> Array:
    """Student's t with three degrees of freedom: one turn in a hundred is wrong by 10 %."""
    return SCATTER / math.sqrt(3) * generator.standard_t(3, (2, visits, rounds))


def drifting(generator: np.random.Generator, visits: int, rounds: int) -> Array:
    """The machine becomes slower over the visits, for both contenders alike: times grow by 50 %."""
    return independent(generator, visits, rounds) + np.linspace(0, math.log(1.5), visits)[:, None]


def twofold(generator: np.random.Generator, visits: int, rounds: int) -> Array:
    """Every process is 25 % slower in three of ten visits."""
    slow = generator.random((2, visits, 1)) < 0.3
    return independent(generator, visits, rounds) + np.where(slow, math.log(1.25), 0.0)


@pytest.mark.parametrize("noise", [independent, heavy_tailed, drifting, twofold])
@pytest.mark.parametrize("ratio", [1.0, 1.03], ids=["identical", "three per cent slower"])
def test_a_comparison_claims_what_is_not_so_less_often_than_its_level(noise: Noise, ratio: float) -> None:
    """It is looked at after each visit until it is settled, at most eight. Wrong verdicts and intervals are counted."""
    generator, false, missed = np.random.default_rng(2026), 0, 0
    true = Kind.SLOWER if ratio > 1 + MARGIN else Kind.EQUIVALENT
    for _ in range(TRIALS):
        base, other = np.exp(noise(generator, 8, ROUNDS))
        for visits in range(2, 9):
            pair = latency(base[:visits].tolist()), latency((ratio * other[:visits]).tolist())
            if compare(*pair, alpha=EARLY_ALPHA, margin=EARLY_MARGIN).settled:
                break
        found = compare(*pair)
        false += found.kind not in (true, Kind.UNDECIDED)
        missed += not found.low <= ratio <= found.high
    allowed = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / TRIALS)  # three standard errors
    assert false / TRIALS <= allowed and missed / TRIALS <= allowed


@pytest.mark.parametrize("slower", [(0.0, 0.0, 0.0), (0.0, 0.05, 2.0)])
def test_all_verdicts_of_one_workload_err_together_less_often_than_their_level(slower) -> None:
    """Verdicts are made step by step: one far behind is decided first, and leaves its share of the error to others."""
    generator, trials, false = np.random.default_rng(3), 150, 0
    logs = dict(zip("abc", slower, strict=True))
    for _ in range(trials):
        results = [
            measured(name, in_sets(np.exp(log + generator.normal(0, SCATTER, 5 * ROUNDS)).tolist()))
            for name, log in {"base": 0.0, **logs}.items()
        ]
        found = verdicts_against(results, "base")
        true = {name: (Kind.EQUIVALENT, Kind.SLOWER)[log > math.log1p(MARGIN)] for name, log in logs.items()}
        false += any(one.kind not in (true[name], Kind.UNDECIDED) for name, one in found.items())
        assert all(one.kind is Kind.SLOWER for name, one in found.items() if logs[name] >= 1)
        part = sum(one.kind is not Kind.UNDECIDED for one in found.values()) / 3 or 1
        alone = compare(results[0].latency, results[3].latency, alpha=part * ALPHA)
        assert alone.low == found["c"].low or found["c"].kind is Kind.UNDECIDED
    assert false / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)
