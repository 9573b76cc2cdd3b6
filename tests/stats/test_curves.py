"""Where two contenders change places, and how fast times grow, on known laws."""

from __future__ import annotations

import pytest

from attnlab.stats.analysis import crossovers, slope_of
from attnlab.stats.intervals import Kind, Verdict


def verdict(ratio: float, spread: float = 1.05) -> Verdict:
    kind = Kind.FASTER if ratio * spread < 0.99 else Kind.SLOWER if ratio / spread > 1.01 else Kind.UNDECIDED
    return Verdict(kind, ratio, ratio / spread, ratio * spread, 31)


@pytest.mark.parametrize("truth", [100.0, 180.0, 316.2, 632.5, 1000.0])
@pytest.mark.parametrize("overhead", [2.0, 5.0, 50.0])
def test_it_is_where_two_known_laws_cross_and_exact_ratios_leave_the_doubt_of_interpolation(truth, overhead):
    """t_a = 1 + k x and t_b = k + x with x = (n / truth)²: equal at x = 1, and a is faster below."""

    def ratio(n):
        x = (n / truth) ** 2
        return (overhead + x) / (1 + overhead * x)

    verdicts = {n: verdict(ratio(n), 1.0001) for n in (64, 128, 256, 512, 1024, 2048)}
    (found,) = crossovers("a", "b", verdicts)
    assert (found.below, found.above) == ("a", "b")
    assert found.length == pytest.approx(truth, rel=0.03)
    assert found.low <= truth <= found.high
    assert found.high / found.low < 1.3


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_slope_is_the_power_of_the_length(power: float) -> None:
    found = slope_of({n: 1e-9 * n**power for n in (64, 128, 256, 512)})
    assert found is not None and (found.first, found.last) == (64, 512)
    assert found.low <= found.slope <= found.high
    assert found.slope == pytest.approx(power) and found.high - found.low < 1e-6


def test_a_bent_line_has_a_wide_interval_and_two_lengths_have_none() -> None:
    found = slope_of({n: 1e-4 + 1e-9 * n**2 for n in (64, 256, 1024, 4096)})
    assert found is not None and found.high - found.low > 1
    assert slope_of({64: 1.0, 128: 2.0}) is None
