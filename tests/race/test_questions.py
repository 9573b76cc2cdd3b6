"""What `attnlab compare` answers beside one race: several values of one option, and what a length would take."""

from __future__ import annotations

import json

import pytest
from process_sets import TINY, compared, measured
from typed import status

from attnlab.race.prediction import carried_on, ladder
from attnlab.race.series import Series
from attnlab.workload.grid import several_values
from attnlab.workload.result import Measurement, Outcome, Result
from attnlab.workload.workload import Workload


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


def test_what_a_length_would_take_follows_from_shorter_ones() -> None:
    """Each contender as far as it was measured, memory by its own law; who has too few lengths has a reason."""
    asked, results = Workload(queries=8192, keys=8192), []
    for one in ladder(asked):
        n = one.keys
        peak = Measurement("peak_memory", "B", (1000.0 + 4096 * n,))
        few = Result("b", one, Outcome.OVER_BUDGET, "predicted 9 s")
        results.append(measured("a", 1e-5 + 1e-9 * n**2, peak, workload=one))
        results.append(measured("b", 1e-3 * n, workload=one) if n <= 128 else few)
    assert [one.workload.keys for one in (*results[:6:2], results[-1])] == [64, 96, 128, 4096]
    found = carried_on(results, asked)
    assert found.seconds["a"].value == pytest.approx(1e-9 * 8192**2, rel=0.02)
    assert found.peak_bytes["a"].value == pytest.approx(1000 + 4096 * 8192, rel=1e-3)
    assert "b" not in found.seconds and "predicted 9 s" in found.reasons["b"]
    assert (
        "b: its time was measured at 3 lengths" in found.sentences()[1] and found.table()[1][0][-1] == "4096"
    )
    far = carried_on(results[:20], asked.with_(queries=65536, keys=65536))
    assert "a was measured only up to 1536" in "".join(far.sentences())


def test_what_follows_no_law_is_not_predicted() -> None:
    asked = Workload(queries=65536, keys=65536)
    lengths = [one for one in ladder(asked) if one.keys <= 1024]
    told = [measured("a", 1e-5 * one.keys * (1, 9)[at % 2], workload=one) for at, one in enumerate(lengths)]
    found = carried_on(told, asked)
    assert not found.seconds and "its time does not follow" in found.reasons["a"]


def test_who_would_be_faster_is_told_where_it_follows() -> None:
    asked, times = Workload(queries=8192, keys=8192), {"a": 1e-9, "b": 9e-9, "c": 1e-9}
    results = []
    for at, one in enumerate(ladder(asked)):
        for name, by in times.items():
            noise = (1.0, 1.05, 0.95)[(at + (name == "c")) % 3]
            results.append(measured(name, by * one.keys**2 * noise, workload=one))
    told = " ".join(carried_on(results, asked).sentences())
    assert "b would take at least" in told and "faster there does not follow: their" in told


def test_one_side_that_stays_is_not_scaled() -> None:
    """Decoding: one query, and the cache is the length."""
    rungs = list(ladder(Workload(batch=2, heads=8, kv_heads=2, queries=1, keys=4096)))
    assert {(one.batch, one.heads, one.kv_heads, one.queries) for one in rungs} == {(2, 8, 2, 1)}
    crossed = list(ladder(Workload(queries=77, keys=4096)))
    assert {one.queries for one in crossed} == {77} and crossed[0].keys == 96
    padded = ladder(Workload(batch=2, queries=4096, keys=4096, key_lengths=(4096, 1024)))
    assert {one.keys // min(one.key_lengths or (1,)) for one in padded} == {4}


@pytest.mark.parametrize("words", [["--length", "16,32"], ["--threads", "1,2", "--length", "16"]])
def test_a_series_is_raced(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """For real, small, and told to other programs."""
    limits = ["--processes", "2", "--seconds", "0.2", "--heads", "1", "--json"]
    assert status("compare", "numpy_vectorized", "naive_loop", *words, *limits) == 0
    told = json.loads(capsys.readouterr().out)
    assert "--" + told["option"] == words[0] and told["sentences"]
    assert [one["value"] for one in told["comparisons"]] == words[1].split(",")
    assert all(len(one["contenders"]) == 2 for one in told["comparisons"])


def test_a_prediction_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    """For real: what it says of time is up to the machine, of memory it is a law."""
    words = ["--length", "1024", "--heads", "1", "--head-dim", "8", "--predict", "--processes", "1"]
    assert status("compare", "numpy_vectorized", *words, "--seconds", "0.1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    time, peak = told["seconds"]["numpy_vectorized"], told["peak_bytes"]["numpy_vectorized"]
    assert time["low"] <= time["value"] <= time["high"] and (time["longest"], time["length"]) == (512, 1024)
    assert 4 * 1024**2 < peak["value"] < 4 * 4 * 1024**2  # float32 scores, held a few times
