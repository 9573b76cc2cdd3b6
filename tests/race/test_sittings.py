"""The record of sittings: what it adds to a verdict. A fault in it never costs the answer of this sitting."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from process_sets import latency, measured
from scripted import SMALL
from typed import status

from attnlab.backends.contender import Contender, parse_all
from attnlab.race.sittings import FILE, Combined, Record
from attnlab.stats.intervals import verdicts_against

PAIR = parse_all(["numpy_vectorized", "numpy_blocked"])
pytestmark = pytest.mark.usefixtures("cache")


def sit(
    ratio: float,
    told: list[str] | None = None,
    *,
    afresh: bool = False,
    seed: int = 0,
    pair: Sequence[Contender] = PAIR,
) -> Combined:
    """One sitting in which the second contender takes `ratio` times as long."""
    results = [
        measured(one.name, latency([[each, 1.02 * each, each, 1.02 * each] for _ in range(5)]))
        for one, each in zip(pair, (1e-3, ratio * 1e-3), strict=True)
    ]
    found = verdicts_against(results, pair[0].name)
    record = Record(afresh=afresh, tell=([] if told is None else told).append)
    return record.combine(SMALL.with_(seed=seed), pair, found, ())[pair[1].name]


def test_a_second_sitting_adds_to_the_first_whatever_the_inputs_were() -> None:
    """A sitting that contradicts the earlier ones is reported. With `afresh` the earlier ones do not count."""
    first, second = sit(1.5), sit(1.5, seed=7)
    assert (len(first.sittings), len(second.sittings), second.differ) == (1, 2, None)
    assert math.log(second.verdict.high / second.verdict.low) < math.log(
        first.verdict.high / first.verdict.low
    )
    third = sit(1.9)
    assert third.differ is not None and third.verdict.low < 1.6 < third.verdict.high
    assert third.shown and sit(1.5, afresh=True).sittings[1:] == []
    assert len(Record().lines()) == 4


def test_one_sitting_allows_for_less_between_two_versions_of_one_backend() -> None:
    """The state of the machine affects both versions alike, but not two numbers of threads."""
    names = ("numpy_blocked", "numpy_blocked[slowed=3]", "numpy_blocked[threads=1]")
    plain, version, threads = parse_all(names)
    assert sit(1.0, pair=(plain, version)).between < sit(1.0, pair=(plain, threads)).between


def test_another_question_has_sittings_of_its_own(cache: Path) -> None:
    """Other packages, another machine or another file of a backend make another question."""
    sit(1.5)
    lines = (cache / FILE).read_text().split("\n")
    (cache / FILE).write_text(json.dumps({**json.loads(lines[1]), "question": "another"}) + "\n")
    assert len(sit(1.9).sittings) == 1


@pytest.mark.parametrize("text", ["{", "[1]", '{"question": 3}', "\x00\xff", '{"a": {' * 10_000])
def test_a_damaged_line_is_left_out_and_told(cache: Path, text: str) -> None:
    sit(1.5)
    with (cache / FILE).open("a", encoding="latin-1") as file:
        file.write(text)
    told: list[str] = []
    found = sit(1.5, told)
    assert found.verdict.low > 1 and told and "\n" not in told[0] and FILE in told[0]
    again: list[str] = []
    assert len(sit(1.5, again).sittings) >= 2 or "left out" in again[0]


@pytest.mark.parametrize("figure", [{"mean": 1e6}, {"error": 1e200}, {"freedom": 0}])
def test_a_figure_that_no_sitting_has_is_left_out_and_told(cache: Path, figure: dict[str, float]) -> None:
    sit(1.5)
    line = json.loads((cache / FILE).read_text())
    (cache / FILE).write_text(json.dumps({**line, "sitting": {**line["sitting"], **figure}}))
    told: list[str] = []
    assert len(sit(1.5, told).sittings) == 1 and told[0].startswith("1 of 1 lines")


def test_of_a_large_record_the_newest_part_counts(cache: Path) -> None:
    sit(1.5)
    line = (cache / FILE).read_bytes()
    with (cache / FILE).open("wb") as file:
        file.seek(2**26)
        file.write(line)
    told: list[str] = []
    assert len(sit(1.5, told).sittings) == 2 and not told


def test_a_contender_beside_itself_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    sit(1.0, pair=parse_all(["numpy_blocked"] * 2))
    assert status("compare", "--sittings", "numpy_blocked", "numpy_blocked") == 0
    assert "numpy_blocked#2" in capsys.readouterr().out


def test_a_record_that_cannot_be_written_costs_nothing_but_itself(cache: Path) -> None:
    """Here the record is a folder, in place of a disk that is full or read-only."""
    (cache / FILE).mkdir(parents=True)
    told: list[str] = []
    assert sit(1.5, told).verdict.low > 1
    assert [FILE in one and "\n" not in one for one in told] == [True, True]


def test_what_two_write_at_once_is_all_there() -> None:
    threads = [threading.Thread(target=sit, args=(1.5,)) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(Record().lines()) == 8
