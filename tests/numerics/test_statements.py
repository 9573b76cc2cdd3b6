"""Each statement of the laboratory that was found too wide, with the figure that bounds it."""

from __future__ import annotations

from functools import partial

import pytest

from attnlab.numerics import vanishing_gradient
from attnlab.numerics.finding import Row, pick
from attnlab.numerics.survey import Measure, Survey


def rows_of(
    *measures: Measure, backends: tuple[str, ...] = ("torch_sdpa",), dtype: str = "float64"
) -> list[Row]:
    """What the measures find through the backends; every row must pass."""
    survey = Survey(backends)
    survey.each(*measures, dtype=dtype)
    assert survey.rows and all(row.passed for row in survey.rows), survey.rows
    return survey.rows


def test_small_values_shrink_the_gradients_of_queries_and_keys_alone() -> None:
    rows = rows_of(
        partial(vanishing_gradient.small_values, folders=()), backends=("torch_sdpa", "torch_eager")
    )
    ratio = {str(row.where["of"]): row.measured for row in rows}
    assert ratio == pytest.approx({"query": 1e-3, "key": 1e-3, "value": 1.0}, rel=1e-10)
