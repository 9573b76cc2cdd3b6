"""The scatter within and between processes is told apart, and two speeds are seen where there are two."""

from __future__ import annotations

import math

import numpy as np
import pytest
from process_sets import PLACED_FOR, latency

from attnlab.judge.replication import (
    components,
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


def placed(*seconds: float, scatter: float = 0.0) -> Measurement:
    """Two placements a process, each raced for its rounds at one of these speeds."""
    rounds = [second * (1 + scatter * (index - 1)) for second in seconds for index in range(PLACED_FOR)]
    size = 2 * PLACED_FOR
    return latency([rounds[at : at + size] for at in range(0, len(rounds), size)])


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
