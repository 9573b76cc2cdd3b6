"""The file of the page: whole in itself, small, and with the report's own figures in it."""

from __future__ import annotations

import html.parser
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_05UP, Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_blocks import block, data_of, unpacked

from attnlab import figures, units
from attnlab.errors import NotStored
from attnlab.problem.result import Result
from attnlab.report import page_data as data_module
from attnlab.report.analysis import Analysis, analyse
from attnlab.report.explore import LIMIT, render, write
from attnlab.report.page_columns import DIGITS, parts
from attnlab.report.page_packed import packed
from attnlab.report.page_rounds import Rounds, fitting
from attnlab.runs.store import Run, read_run

Make = Callable[..., Run]
REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


class Elements(html.parser.HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.found.append((tag, dict(attributes)))


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
    """Times, ratios and intervals to five digits, with which they read alike; first places as they are."""
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
        assert results["time"][row] == pytest.approx(standing.seconds, rel=1e-4)
        assert units.seconds_text(results["time"][row]) == units.seconds_text(standing.seconds)
        verdict = standing.against_baseline
        if verdict is not None:
            assert results["baseline_ratio"][row] == pytest.approx(1 / verdict.ratio, rel=1e-4)
            assert results["baseline_low"][row] == pytest.approx(1 / verdict.high, rel=1e-4)
            assert results["baseline_high"][row] == pytest.approx(1 / verdict.low, rel=1e-4)
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
        name: style.colour for name, style in figures.styles(names).items()
    }


def test_the_page_of_a_real_run_is_small() -> None:
    """The reference run with all its rounds."""
    page = render([read_run(REFERENCE)])
    assert len(page.encode()) < 640_000
    assert data_of(page)["rounds"]["every"] == 1


def test_rounds_that_do_not_fit_are_thinned_evenly_and_counted(made: Make) -> None:
    """The page keeps its size and says how many of how many it shows."""
    run = made(rounds=600)
    everything = render([run])
    whole, rounds = len(everything), len(block(everything, "rounds"))
    page = render([run], limit=whole - rounds // 2)
    told = data_of(page)["rounds"]
    assert len(page.encode()) <= whole - rounds // 2
    assert told["every"] > 1 and told["all"] == 600 * len(told["more"])
    assert told["shown"] == sum(map(len, told["more"]))
    without = data_of(render([run], limit=whole - rounds + 400))["rounds"]
    assert without == {"all": told["all"], "shown": 0, "every": 0}


def test_a_page_that_cannot_fit_says_so(made: Make) -> None:
    """One line, with both sizes."""
    with pytest.raises(
        ValueError, match=r"make a page of [\d.]+ KiB without a raw round, more than 97\.7 KiB"
    ):
        render([made()], limit=100_000)
    with pytest.raises(ValueError, match="at least one run"):
        render([])


def test_a_page_that_cannot_be_written_is_one_line(made: Make, tmp_path: Path) -> None:
    """A file stands where its folder should be."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotStored, match=r"page\.html cannot be written: .*; name another place with --out"):
        write([made()], tmp_path / "file" / "page.html")


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
)
def test_no_text_ends_the_block_of_data(value: Any) -> None:
    """And it is read as it was; equal data makes equal pages."""
    letters = packed(value)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", letters)
    assert unpacked(letters) == value
    assert packed(value) == letters


def test_a_number_that_json_has_not_is_refused() -> None:
    """A browser could not read it."""
    with pytest.raises(ValueError, match="JSON compliant"):
        packed([math.nan])


@given(st.floats(1e-300, 1e300), st.integers(1, DIGITS - 1))
def test_a_figure_of_few_digits_reads_as_the_figure_itself(value: float, digits: int) -> None:
    """Rounded to fewer digits it is what the figure rounds to, unlike one that was rounded to nearest before."""
    cut, power = parts(value)
    shown = Context(prec=DIGITS, rounding=ROUND_05UP).create_decimal(f"{value:.14e}")
    assert Decimal(f"{cut}e{power}") == shown
    assert f"{float(shown):.{digits - 1}e}" == f"{float(f'{value:.14e}'):.{digits - 1}e}"


@pytest.mark.parametrize("value", [None, math.inf, -math.inf, math.nan, -1.0])
def test_what_is_no_figure_has_no_power(value: float | None) -> None:
    """And 0 is one."""
    assert parts(value) == ("00000", None)
    assert parts(0.0) == ("00000", 0)


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
    told = unpacked(fitting([Rounds(tuple(numbers), seconds, processes, disturbed)], LIMIT))
    (exponent,), (least,), (more,) = told["exponent"], told["least"], told["more"]
    for above, second in zip(more, seconds, strict=True):
        assert above >= 0
        assert math.isclose((least + above) * 10.0**exponent, second, rel_tol=5.1e-4)
    ((stretches, owners),) = told["stretches"]
    assert [first + one * step for first, count, step in stretches for one in range(count)] == numbers
    assert [process for process, count in owners for _ in range(count)] == list(processes)
    assert told["disturbed"] == [[place for place, flag in enumerate(disturbed) if flag]]


@given(st.integers(0, 4000), st.lists(st.integers(1, 200), max_size=12))
def test_thinned_rounds_never_take_more_room_than_there_is(most: int, counts: list[int]) -> None:
    """All are kept where they fit; results that were timed in the same rounds share their stretches."""
    every = [
        Rounds(
            tuple(range(one)), tuple(1e-3 + 1e-6 * index for index in range(one)), (0,) * one, (False,) * one
        )
        for one in counts
    ]
    letters = fitting(every, most)
    found = unpacked(letters)
    assert found["all"] == sum(counts)
    assert len(letters) <= most or found["shown"] == 0
    whole = fitting(every, LIMIT)
    assert len(unpacked(whole)["stretches"]) == len(set(counts))
    if len(whole) <= most:
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


@pytest.mark.parametrize("text", ["a plain kernel", "a <b>kernel</b>"])
def test_a_reports_analysis_is_used_where_it_shows_texts_as_they_are(
    made: Make, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """One in which a text was changed for Markdown is not: the page is the same with it and without."""
    run = made()
    run.results[1] = replace(run.results[1], kernel=text)
    known, alone = analyse(run), render([run])
    asked: list[Run] = []

    def counted(one: Run, safe: Callable[[Run], Run]) -> Analysis:
        asked.append(one)
        return analyse(one, safe)

    monkeypatch.setattr(data_module, "analyse", counted)
    assert render([run], known=[analyse(made(lengths=(64,))), known]) == alone
    assert len(asked) == ("<" in text)


def test_two_contenders_of_one_line_do_not_break_the_page(made: Make) -> None:
    """Whatever a file of results holds: an answer of somebody whom the plan does not name is shown too."""
    run = made(lengths=(64,), heads=(1,))
    stray: Result = replace(run.results[1], contender="stray", library=None)
    data = data_of(render([replace(run, results=[*run.results, stray])]))
    assert "stray" in {one["name"] for one in data["contenders"]}
