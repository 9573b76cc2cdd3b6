"""One option with several values: who is first at each of them, and how the lead changes."""

from __future__ import annotations

import pytest
from process_sets import TINY, compared, measured

from attnlab.race.series import Series
from attnlab.workload.grid import several_values
from attnlab.workload.result import Outcome, Result


def series(**times: tuple[float, ...]) -> Series:
    """Contenders at batch 1, 2, ..., with these seconds; 0 stands for one that declines."""
    races = {}
    for at, row in enumerate(zip(*times.values(), strict=True), 1):
        results = (
            measured(name, one) if one else Result(name, TINY, Outcome.DECLINED, "no")
            for name, one in zip(times, row, strict=True)
        )
        races[str(at)] = compared(*results)
    return Series("batch", races)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"batch": "1,4, 16", "heads": "8"}, ("batch", ("1", "4", "16"))),
        ({"length": "256,1024,256"}, ("length", ("256", "1024"))),
        ({"causal": "false,bottom_right"}, ("causal", ("false", "bottom_right"))),
        ({"threads": "1,2", "batch": None}, ("threads", ("1", "2"))),
        ({"window": "256,0", "key_lengths": "512,300", "mask": "random(0.5,1)"}, None),
    ],
)
def test_values_are_parted_where_a_comma_is_no_part_of_one(
    texts: dict[str, str | None], found: tuple[str, tuple[str, ...]] | None
) -> None:
    assert several_values(texts) == found


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [((1e-3, 1e-3), (1.3e-3, 2.1e-3), ["one", "one"]), ((1e-3, 3e-3), (2e-3, 1e-3), ["one", "other"])],
)
def test_which_is_first_at_each_value(
    one: tuple[float, ...], other: tuple[float, ...], first: list[str]
) -> None:
    """And both comparisons are told as plain data."""
    found = series(one=one, other=other)
    assert [won.name for won in found.won.values()] == first
    assert [one["value"] for one in found.to_json()["comparisons"]] == ["1", "2"]


def test_threads_are_raced_together_and_told_apart() -> None:
    """The rows are the values, the contenders as they were typed."""
    names = [f"{one}[threads={count}]" for count in (1, 2) for one in "ab"]
    whole = compared(*(measured(name, at * 1e-3) for at, name in enumerate(names, 1)))
    found = Series.of_threads(("1", "2"), ("a", "b"), whole)
    ratios = {value: one.verdicts["b"].ratio for value, one in found.comparisons.items()}
    assert ratios == {"1": pytest.approx(2.0), "2": pytest.approx(4 / 3)}
    assert [won.name for won in found.won.values()] == ["a", "a"]
