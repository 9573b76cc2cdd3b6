"""Two speeds are seen where there are two."""

from __future__ import annotations

import pytest
from process_sets import PLACED_FOR, latency

from attnlab.stats.replication import speeds
from attnlab.workload.result import Measurement


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
