"""The file of the page: whole in itself, small, and with the report's own figures in it."""

from __future__ import annotations

import html.parser
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.contract.errors import NotStored
from attnlab.contract.result import Result
from attnlab.explore import LIMIT, render, write
from attnlab.explore.page import as_block
from attnlab.explore.rounds import Rounds, fitting
from attnlab.figures import drawing
from attnlab.program.store import Run, read_run
from attnlab.report.analysis import analyse

Make = Callable[..., Run]
REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


class Elements(html.parser.HTMLParser):
    """Every element of a page with its attributes, and the text of the one that holds the data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        """Keep the data block."""
        if self.found and self.found[-1][1].get("id") == "data" and not self.data:
            self.data = data


def data_of(page: str) -> Any:
    """What a browser reads as the data."""
    return json.loads(Elements(page).data)


def test_the_page_needs_nothing_beside_itself(made: Make) -> None:
    """No element names another file, no attribute is a script or a style, and the policy allows nothing else."""
    elements = Elements(render([made()])).found
    for tag, attributes in elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")]
    (policy,) = (
        one["content"] for tag, one in elements if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy


def test_the_libraries_carry_their_licences(made: Make) -> None:
    """ISC asks for the notice in every copy."""
    page = render([made()])
    assert page.count('THE SOFTWARE IS PROVIDED "AS IS"') == 2
    assert "Observable, Inc." in page and "Mike Bostock" in page


def test_figures_are_those_of_the_report(made: Make) -> None:
    """Times, ratios and intervals to six digits; first places and margins as they are."""
    run = made()
    data, analysis = data_of(render([run])), analyse(run)
    cells = analysis.cells
    results, workloads = data["results"], data["workloads"]
    assert len(workloads["run"]) == len(cells)
    for row, place in enumerate(results["workload"]):
        cell = cells[place]
        name = data["contenders"][results["contender"][row]]["name"]
        standing = cell.standing(name) if name in cell.measured else None
        if standing is None:
            assert results["time"][row] is None
            continue
        assert results["time"][row] == pytest.approx(standing.seconds, rel=1e-5)
        verdict = standing.against_baseline
        if verdict is not None:
            assert results["baseline_ratio"][row] == pytest.approx(1 / verdict.ratio, rel=1e-5)
            assert results["baseline_low"][row] == pytest.approx(1 / verdict.high, rel=1e-5)
            assert results["baseline_high"][row] == pytest.approx(1 / verdict.low, rel=1e-5)
    for place, cell in enumerate(cells):
        assert cell.ranking is not None
        told = workloads["first"][place] + workloads["same"][place]
        names = {data["contenders"][one]["name"] for one in told}
        assert names == {one.contender for one in cell.ranking.first}


def test_colours_are_those_of_the_figures(made: Make) -> None:
    """A reader finds a contender by its colour in report and page alike."""
    data = data_of(render([made()]))
    names = [one["name"] for one in data["contenders"]]
    assert {one["name"]: one["colour"] for one in data["contenders"]} == {
        name: style.colour for name, style in drawing.styles(names).items()
    }


def test_the_page_of_a_real_run_is_small() -> None:
    """The reference run with all its rounds."""
    page = render([read_run(REFERENCE)])
    assert len(page.encode()) < 700_000
    assert data_of(page)["rounds"]["every"] == 1


def test_rounds_that_do_not_fit_are_thinned_evenly_and_counted(made: Make) -> None:
    """The page keeps its size and says how many of how many it shows."""
    run = made(rounds=600)
    everything = render([run])
    whole, rounds = len(everything.encode()), len(as_block(data_of(everything)["rounds"]["of"]))
    page = render([run], limit=whole - 60_000)
    told = data_of(page)["rounds"]
    assert len(page.encode()) <= whole - 60_000
    assert told["every"] > 1 and told["all"] == 600 * sum(one is not None for one in told["of"])
    assert told["shown"] == sum(len(one[1]) for one in told["of"])
    without = data_of(render([run], limit=whole - rounds + 400))["rounds"]
    assert (without["shown"], without["every"], without["all"]) == (0, 0, told["all"])


def test_a_page_that_cannot_fit_says_so(made: Make) -> None:
    """One line, with both sizes."""
    with pytest.raises(ValueError, match=r"results make a page of 0\.6 MB, more than 0\.1 MB"):
        render([made()], limit=100_000)
    with pytest.raises(ValueError, match="at least one run"):
        render([])


def test_a_page_that_cannot_be_written_is_one_line(made: Make, tmp_path: Path) -> None:
    """A file stands where its folder should be."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotStored, match=r"page\.html cannot be written: .*; name another file with --out"):
        write([made()], tmp_path / "file" / "page.html")


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
)
def test_no_text_ends_the_block_of_data(value: Any) -> None:
    """And it is read as it was."""
    block = as_block(value)
    assert "<" not in block
    assert json.loads(block) == value


rounds_of = st.lists(
    st.tuples(st.floats(1e-9, 1e3), st.integers(0, 5), st.booleans(), st.integers(1, 3)),
    min_size=1,
    max_size=60,
)


@given(rounds_of)
def test_rounds_come_back_to_four_digits(taken: list[tuple[float, int, bool, int]]) -> None:
    """With their numbers, processes and disturbances, whatever gaps there are."""
    numbers, at = [], 0
    for *_, gap in taken:
        numbers.append(at)
        at += gap
    seconds, processes, disturbed, _ = zip(*taken, strict=True)
    exponent, times, stretches, owners, left_out = Rounds(
        tuple(numbers), seconds, processes, disturbed
    ).plain()
    for time, second in zip(times, seconds, strict=True):
        assert math.isclose(time * 10.0**exponent, second, rel_tol=5.1e-4)
    assert [first + one for first, count in stretches for one in range(count)] == numbers
    assert [process for process, count in owners for _ in range(count)] == list(processes)
    assert left_out == [place for place, flag in enumerate(disturbed) if flag]


@given(st.integers(0, 4000), st.lists(st.integers(1, 200), max_size=12))
def test_thinned_rounds_never_take_more_room_than_there_is(most: int, counts: list[int]) -> None:
    """All are kept where they fit."""
    every = [
        Rounds(
            tuple(range(one)), tuple(1e-3 + 1e-6 * index for index in range(one)), (0,) * one, (False,) * one
        )
        for one in counts
    ]
    found = fitting(every, most)
    assert found["all"] == sum(counts)
    assert len(json.dumps(found["of"], separators=(",", ":"))) <= most or found["shown"] == 0
    if len(json.dumps([one.plain() for one in every], separators=(",", ":"))) <= most:
        assert found["shown"] == found["all"] and found["every"] == 1


def test_texts_of_a_run_are_one_safe_line_each(made: Make) -> None:
    """A terminal's escapes and letters that turn the direction of writing do not reach the page."""
    run = made()
    bad = "a\x1b[31m\u202e\nb" + "x" * 2000
    results = [replace(one, kernel=bad, reason=one.reason and bad) for one in run.results]
    page = render(
        [replace(run, results=results, command=bad, environment={"cpu": bad, "contenders": {bad: 3}})]
    )
    texts = json.dumps(data_of(page), ensure_ascii=False)
    assert not re.search("[\x1b\u202e\n]", texts)
    assert len(page.encode()) < LIMIT


def test_two_contenders_of_one_line_do_not_break_the_page(made: Make) -> None:
    """Whatever a file of results holds: an answer of somebody whom the plan does not name is shown too."""
    run = made(lengths=(64,), heads=(1,))
    stray: Result = replace(run.results[1], contender="stray", library=None)
    data = data_of(render([replace(run, results=[*run.results, stray])]))
    assert "stray" in {one["name"] for one in data["contenders"]}
