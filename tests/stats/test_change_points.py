"""Change points: found where they are, not found where nothing changed, and indifferent to units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.stats.change_points import FEWEST, LEAST, change_points


def noise(seed, count, sigma=0.02):
    return np.random.default_rng(seed).normal(0, sigma, count)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("place", "step"), [(15, 0.05), (25, 0.05), (25, -0.05), (42, 0.1)])
def test_a_step_is_found_where_it_is(seed, place, step):
    figures = noise(seed, 50)
    figures[place:] += step
    (found,) = change_points(figures)
    assert abs(found - place) <= 3


def test_a_level_that_comes_back_has_both_its_ends():
    figures = noise(0, 60)
    figures[20:30] += 0.1
    found = change_points(figures)
    assert [round(one / 10) for one in found] == [2, 3]


def test_histories_without_a_change_show_none_but_rarely():
    """Of 200 each at most 2 %: white, with heavy tails, and with neighbours that resemble each other."""
    drawn = np.random.default_rng(5)
    wandering = drawn.standard_normal((200, 50))
    for at in range(1, 50):
        wandering[:, at] += 0.3 * wandering[:, at - 1]
    for kind in (drawn.standard_normal((200, 50)), drawn.standard_t(3, (200, 50)), wandering):
        assert sum(bool(change_points(one)) for one in kind) <= 4


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-10, 10), max_size=40), st.integers(0, 40), st.floats(0.1, 100))
def test_whatever_the_figures_levels_have_a_least_length_and_no_unit(figures, place, unit):
    figures = [round(one, 3) + 30.0 * (at >= place) for at, one in enumerate(figures)]
    found = change_points(figures)
    ends = [0, *found, len(figures)]
    assert not found or min(np.diff(ends)) >= LEAST
    assert found == change_points(figures) == change_points([unit * one for one in figures])


def test_what_is_constant_or_short_has_no_change():
    assert change_points([1.0] * 50) == change_points([]) == []
    assert change_points([0.0] * 4 + [9.0] * (FEWEST - 5)) == []
    assert change_points([1.0, 2.0] * 6 + [8.0, 9.0] * 6) == [12]
