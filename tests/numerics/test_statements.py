"""Each statement of the laboratory that was found too wide, with the figure that bounds it."""

from __future__ import annotations

from functools import partial

import pytest

from attnlab.numerics import overflow, vanishing_gradient
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


@pytest.mark.parametrize(
    ("dtype", "of_1024", "of_one"),
    [("float16", 4.16, 11.09), ("float32", 81.79, 88.72), ("float64", 702.85, 709.78)],
)
def test_the_sum_of_exponentials_overflows_before_they_do_and_gives_zeros(
    dtype: str, of_1024: float, of_one: float
) -> None:
    rows = list(overflow.textbook_overflow(dtype))
    assert all(row.passed for row in rows), rows
    limits = {row.where["keys"]: row.measured for row in pick(rows, "unshifted softmax overflows above")}
    assert limits == pytest.approx({1: of_one, 1024: of_1024}, abs=0.01)
    zero, nan = (pick(rows, f"share of unshifted weights that are {what}") for what in ("0", "NaN"))
    assert [row.measured for row in zero] == [1, 0] and [row.measured for row in nan] == [0, 1]
