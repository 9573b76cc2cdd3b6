"""Non-negative least squares of many problems at once is that of each by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from attnlab.judge import nonnegative, resampling


@pytest.mark.parametrize("problems", [3, 100])
@given(
    seed=st.integers(0, 10**6), equations=st.integers(4, 12), unknowns=st.integers(1, 4), lacks=st.booleans()
)
def test_each_solution_is_that_of_scipy(problems, seed, equations, unknowns, lacks):
    generator = np.random.default_rng(seed)
    terms = generator.normal(0.3, 1, (problems, equations, unknowns)) * 10.0 ** np.arange(unknowns)
    if lacks:
        terms[::2, :, -1] = 0
    values = generator.normal(0.5, 1, (problems, equations))
    expected = [nnls(*one)[0] for one in zip(terms, values, strict=True)]
    assert nonnegative.solve(terms, values) == pytest.approx(np.array(expected), rel=1e-8, abs=1e-10)


def test_columns_that_depend_on_each_other_still_have_a_solution():
    terms = np.tile([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], (5, 1, 1))
    found = nonnegative.solve(terms, np.tile([1.0, 2.0, 3.0], (5, 1)))
    assert found.min() >= 0
    assert found @ [1.0, 2.0] == pytest.approx(np.ones(5))


def old_resampled(groups, level, times, seed):
    """Drawn and reduced one process at a time, by NumPy's own functions."""
    generator, columns = np.random.default_rng(seed), []
    for group in groups:
        rows = [np.asarray(one) for one in group if len(one)]
        again = [generator.choice(one, size=(times, len(one))) for one in rows]
        levels = np.stack([np.quantile(one, level, axis=1) for one in again])
        size = (times, len(rows))
        chosen = levels[generator.integers(len(rows), size=size), generator.integers(times, size=size)]
        columns.append(np.median(chosen, axis=1))
    return np.stack(columns, axis=1)


@given(
    st.lists(
        st.lists(st.lists(st.floats(0.1, 10), max_size=6), min_size=1, max_size=4).filter(
            lambda one: any(map(len, one))
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_resampling_all_processes_at_once_draws_what_one_at_a_time_draws(groups, seed):
    levels = resampling.Levels(groups, 0.1)
    medians = [np.median([np.quantile(one, 0.1) for one in group if one]) for group in groups]
    assert levels.medians() == pytest.approx(np.array(medians))
    assert levels.resampled(50, seed) == pytest.approx(old_resampled(groups, 0.1, 50, seed))
