"""The scatter within and between processes is told apart, and two speeds are seen where there are two."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_sets import PLACED_FOR, latency

from attnlab.judge.replication import (
    Components,
    components,
    placements,
    rounds_per_process,
    speeds,
)
from attnlab.problem.result import Measurement


@pytest.mark.parametrize(("within", "between"), [(0.03, 0.0), (0.03, 0.01), (0.01, 0.1), (0.0, 0.05)])
def test_the_two_levels_of_scatter_are_recovered(within: float, between: float) -> None:
    """From 400 processes of 8 rounds: each variance within three of its own standard errors."""
    generator = np.random.default_rng(11)
    processes, rounds = 400, 8
    means = generator.normal(0, between, processes)
    drawn = means[:, None] + generator.normal(0, within, (processes, rounds))
    found = components({number: row.tolist() for number, row in enumerate(drawn)})
    assert found is not None
    error_within = within**2 * math.sqrt(2 / (processes * (rounds - 1)))
    assert found.within**2 == pytest.approx(within**2, abs=3 * error_within + 1e-18)
    of_means = between**2 + within**2 / rounds
    error_between = math.hypot(of_means * math.sqrt(2 / (processes - 1)), error_within / rounds)
    assert found.between**2 == pytest.approx(between**2, abs=3 * error_between)


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.floats(0.01, 100), st.floats(0.01, 100))
def test_no_other_number_of_rounds_reaches_a_width_in_less_time(
    within: float, between: float, process_cost: float, round_cost: float
) -> None:
    """The time for a given variance of the mean, (T2² + T1²/r) · (c2 + c1 r), is least there."""
    best = rounds_per_process(Components(within, between), process_cost, round_cost)

    def time(rounds: float) -> float:
        return (between**2 + within**2 / rounds) * (process_cost + round_cost * rounds)

    assert all(time(best) <= time(best * factor) * (1 + 1e-9) for factor in (0.5, 0.9, 1.1, 2.0))


def placed(*seconds: float, scatter: float = 0.0) -> Measurement:
    """Two placements a process, each raced for its rounds at one of these speeds."""
    rounds = [second * (1 + scatter * (index - 1)) for second in seconds for index in range(PLACED_FOR)]
    size = 2 * PLACED_FOR
    return latency([rounds[at : at + size] for at in range(0, len(rounds), size)])


def by_turns(slow: list[bool]) -> bool:
    """Whether each speed is met three times, and not all of one before all of the other."""
    turns = sum(before != after for before, after in pairwise(slow))
    return 3 <= sum(slow) <= len(slow) - 3 and turns >= 2


@given(
    st.lists(st.booleans(), min_size=6, max_size=20).filter(by_turns),
    st.floats(1.14, 3.0),
    st.floats(1e-5, 1.0),
)
def test_two_speeds_are_found_where_they_are_built_in(slow: list[bool], apart: float, fast: float) -> None:
    """With how often each was met, whatever the order."""
    found = speeds(placed(*[fast * apart if one else fast for one in slow], scatter=0.02))
    assert [one.placements for one in found] == [slow.count(False), slow.count(True)]
    assert [one.seconds for one in found] == [pytest.approx(fast), pytest.approx(fast * apart)]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param((1.0, 1.5, 1.0, 1.5, 1.0, 1.0), id="met twice"),
        pytest.param((1.0, 1.5), id="too few placements"),
        pytest.param((1.0, 1.3, 1.1, 1.5, 1.2, 1.4), id="spread evenly"),
        pytest.param((1.0, 1.4, 1.1, 1.5, 1.2, 1.6), id="a gap of twice the scatter within"),
        pytest.param((1.0, 1.1) * 3, id="less than twelve per cent apart"),
        pytest.param((1.0, 1.0, 1.0, 1.5, 1.5, 1.5), id="the machine slowed down once"),
        pytest.param((1.5, 1.5, 1.5, 1.5, 1.0, 1.0), id="the machine became faster once"),
    ],
)
def test_what_is_not_clearly_two_speeds_is_one(seconds: tuple[float, ...]) -> None:
    """It takes two groups that stand apart, each met three times."""
    assert len(speeds(placed(*seconds))) == 1


def test_a_disturbed_turn_says_nothing_of_where_memory_lies() -> None:
    """Nor does a placement of which all turns were disturbed."""
    lost = range(PLACED_FOR)
    samples = [9.0] * PLACED_FOR + [1.0, 7.0, 1.0]
    one = latency([samples], disturbed=[*lost, 4])
    assert placements(one) == {(0, 1): [1.0, 1.0]}
    assert speeds(latency([[1.0] * PLACED_FOR], disturbed=lost)) == ()
