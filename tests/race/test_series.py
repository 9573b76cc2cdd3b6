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
    return Series.of_races("batch", races)


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
    ("one", "other", "said"),
    [
        ((1e-3, 1e-3), (1.3e-3, 2.1e-3), "one is first at both; the lead grows from 1.300 to 2.10."),
        ((1e-3, 1e-3), (2.1e-3, 1.3e-3), "falls from 2.10 to 1.300"),
        ((1e-3, 1e-3), (2e-3, 2e-3), "does not clearly change"),
        ((1e-3, 3e-3), (2e-3, 1e-3), "one is first at batch 1; other is first at batch 2."),
        ((1e-3, 1e-3), (2e-3, 1e-3), "not decided at 2"),
    ],
)
def test_who_is_first_and_how_the_lead_goes(
    one: tuple[float, ...], other: tuple[float, ...], said: str
) -> None:
    """It grows or falls only where its intervals lie apart."""
    assert said in series(one=one, other=other).sentences()[0]


def test_who_declines_has_no_time_and_nobody_is_first_of_one() -> None:
    declined = series(one=(1e-3, 1e-3), other=(2e-3, 0))
    assert "batch 2: other: declined. no." in declined.sentences() and declined.table()[1][1][2] == "declined"
    assert series(one=(1e-3, 1e-3)).sentences() == []


def test_threads_are_raced_together_and_told_apart() -> None:
    """The rows are the values, the columns the contenders as they were typed; each is told by what threads give it."""
    names = [f"{one}[threads={count}]" for count in (1, 2) for one in "ab"]
    whole = compared(*(measured(name, at * 1e-3) for at, name in enumerate(names, 1)))
    found = Series.of_threads(("1", "2"), ("a", "b"), whole)
    rows = [" ".join(row[:4]) for row in found.table()[1]]
    assert rows == ["1 1.00 ms 2.00 ms a", "2 3.00 ms 4.00 ms a"]
    first, *further = found.sentences()
    assert first.startswith("a is first at both; the lead falls from 2.00 to 1.333")
    told = [
        f"{one}[threads=2] takes {by} times as long as {one}[threads=1]"
        for one, by in (("a", "3.00"), ("b", "2.00"))
    ]
    assert [one.partition(" (")[0] for one in further[:2]] == told
