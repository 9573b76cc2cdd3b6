"""A result without outcome `measured` has no speed, and every result survives a trip through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.workload.result import Accuracy, Measurement, Outcome, Result, merged
from attnlab.workload.workload import Workload

REFERENCE = Path(__file__).parents[2] / "reports" / "reference" / "results.jsonl"
LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 3.0)}, {"cache": "warm"})
PASSED = Accuracy(1e-7, 4e-6, passed=True)
FAILED = Accuracy(math.nan, 4e-6, passed=False, reason="NaN")


def result(**fields: Any) -> Result:
    """A measured result, with these fields changed."""
    given = {"outcome": Outcome.MEASURED, "measurements": (LATENCY,), "accuracy": PASSED, **fields}
    return Result(contender="torch_sdpa[threads=1]#2", workload=Workload(), **given)


OTHERS = [outcome for outcome in Outcome if outcome is not Outcome.MEASURED]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"outcome": one, "reason": "because"}, f"outcome {one} allows no measurements") for one in OTHERS),
        *(({"outcome": one, "measurements": ()}, f"outcome {one} needs a reason") for one in OTHERS),
        ({"accuracy": FAILED}, "a wrong result has no speed"),
    ],
)
def test_only_a_measured_result_has_a_speed_and_every_other_a_reason(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        result(**fields)


def test_stored_results_are_read_and_share_their_workload() -> None:
    """They were written by an earlier version, one result per line."""
    stored = REFERENCE.read_text(encoding="utf-8").splitlines()
    found = [Result.from_json(line) for line in stored]
    assert [Result.from_json(one.to_json()) for one in found] == found
    assert found[0].workload is found[1].workload


numbers = st.floats() | st.integers(-(2**53), 2**53).map(float)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    """A latency with columns of any numbers, also infinite and NaN."""
    samples = draw(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5))
    columns = {
        name: tuple(draw(numbers) for _ in samples) for name in draw(st.sets(st.text(max_size=5), max_size=3))
    }
    columns["round"] = tuple(map(float, range(len(samples))))
    return Measurement("latency", "s", tuple(samples), columns, {"method": draw(st.text(max_size=9))})


@given(measurements(), st.text(min_size=1), numbers, st.none() | st.text(max_size=9))
def test_a_result_survives_a_trip_through_one_line_of_strict_json(latency, name, error, kernel) -> None:
    """Any text and any number. They are compared by their repr, because NaN is not equal to itself."""
    accuracy = Accuracy(error, 1.0, passed=True)
    before = result(kernel=kernel, library="torch", accuracy=accuracy, measurements=(latency,))
    before = replace(before, contender=name, workload=Workload(causal=True, scale=0.1))
    line = before.to_json()
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert repr(Result.from_json(line)) == repr(before)


@pytest.mark.parametrize("sample", ["nan", "inf", -1.0, 0.0, 1e300])
@pytest.mark.parametrize("quantity", ["latency", "setup", "peak_memory"])
def test_a_figure_that_cannot_have_been_measured_is_refused_by_name(quantity: str, sample: Any) -> None:
    """The message names the measurement, not the effect on a verdict. Memory and set-up may be 0."""
    further = () if quantity == "latency" else (Measurement(quantity, "s", (1.0, 2.0)),)
    plain = json.loads(result(measurements=(LATENCY, *further)).to_json())
    plain["measurements"][-1]["samples"][-1] = sample
    if sample == 0.0 and quantity != "latency":
        assert Result.from_json(json.dumps(plain)).measurements[-1].samples[-1] == 0.0
        return
    with pytest.raises(ValueError, match=rf"\$\.measurements\[{len(further)}\]"):
        Result.from_json(json.dumps(plain))


def test_a_line_of_a_newer_version_is_refused_where_it_means_something_else() -> None:
    """An unknown outcome or workload field is refused; other unknown fields are ignored."""
    plain = json.loads(result().to_json())
    with pytest.raises(ValueError, match="melted"):
        Result.from_json(json.dumps({**plain, "outcome": "melted"}))
    with pytest.raises(ValueError, match="the workload: unknown key"):
        Result.from_json(json.dumps({**plain, "workload": {**plain["workload"], "rotation": 3}}))
    assert Result.from_json(json.dumps({**plain, "further": "calm"})).to_json() == json.dumps(plain)


def test_an_error_names_the_key_and_an_older_line_lacks_the_library() -> None:
    """The message has the path of the wrong value. Results without a library, from an earlier version, can be read."""
    plain = json.loads(result(library="torch").to_json())
    with pytest.raises(ValueError, match=r"got `str` - at .*accuracy\.budget"):
        Result.from_json(json.dumps({**plain, "accuracy": {**plain["accuracy"], "budget": "much"}}))
    with pytest.raises(ValueError, match="missing required field `contender`"):
        Result.from_json(json.dumps({key: one for key, one in plain.items() if key != "contender"}))
    del plain["library"], plain["accuracy"]["of"]
    assert repr(Result.from_json(json.dumps(plain))) == repr(result())


def of_visit(number: int, **fields: Any) -> Result:
    """A measured result of one visit of two rounds."""
    rounds = (1000.0 * number, 1000.0 * number + 1)
    columns = {"round": rounds, "visit": (number,) * 2}
    latency = Measurement("latency", "s", (1.0 + number, 2.0 + number), columns)
    return result(measurements=(latency,), **fields)


def test_the_results_of_several_visits_are_one() -> None:
    """The result has the samples of all measured visits, by contender and workload. One wrong visit makes it wrong."""
    crashed = result(outcome=Outcome.CRASHED, reason="it fell", measurements=(), accuracy=None)
    other = replace(of_visit(0), contender="numpy")
    (found, alone) = merged([of_visit(0), other, crashed, of_visit(2, reason="a note")])
    assert alone == other and found.outcome is Outcome.MEASURED and found.reason == "it fell; a note"
    assert (found.left, alone.left) == ("it fell", None)
    assert merged([of_visit(0, reason="a note")])[0].left is None
    assert found.latency is not None and found.latency.samples == (1.0, 2.0, 3.0, 4.0)
    assert found.latency.visits == {0: 0, 1: 0, 2000: 2, 2001: 2}
    wrong = result(outcome=Outcome.WRONG, reason="rows differ", measurements=(), accuracy=FAILED)
    assert merged([of_visit(0), wrong, of_visit(1)]) == [wrong]
