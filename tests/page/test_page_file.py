"""The file of the page: whole in itself, small, and with the report's own figures in it."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from decimal import ROUND_05UP, Context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_page import Make

from attnlab import figures, units
from attnlab.judge.ranking import Sure
from attnlab.problem.result import Measurement
from attnlab.report.analysis import analyse
from attnlab.report.explore_data import figure, packed, packed_rounds
from attnlab.report.explore_page import LIMIT, render
from attnlab.runs.store import read_run

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


def unpacked(letters: str) -> Any:
    """What stands in a block."""
    return json.loads(gzip.decompress(base64.b64decode(letters, validate=True)))


def blocks(page: str) -> list[str]:
    """The letters of the data and of the rounds."""
    return re.findall(r'<script type="text/plain" id="\w+">([^<]*)</script>', page)


def column(table: dict[str, Any], name: str) -> list[Any]:
    """A column of a table of the page's data, its texts written out."""
    found = table[name]
    return found if isinstance(found, list) else [found["values"][code] for code in found["codes"]]


def test_the_page_needs_nothing_beside_itself(made: Make) -> None:
    page = render([made()])
    elements = re.findall(r"<(\w+)([^>]*)>", re.sub(r"(?s)(<(script|style)\b[^>]*>).*?</\2>", r"\1", page))
    for tag, attributes in elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not re.search(r"\s(on\w+|src|style)=", attributes)
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    assert (
        policy.startswith("default-src &#39;none&#39;; ") and "unsafe" not in policy and "http" not in policy
    )
    assert page.count('THE SOFTWARE IS PROVIDED "AS IS"') == 2  # of Plot and d3: ISC asks for the notice


def test_figures_and_first_places_are_those_of_the_report(made: Make) -> None:
    run = made()
    data, cells = unpacked(blocks(render([run]))[0]), analyse(run).cells
    results, workloads = data["results"], data["workloads"]
    names, times, best = (column(results, name) for name in ("contender", "time", "best"))
    for row, place in enumerate(results["workload"]):
        standing = cells[place].standing(names[row]) if names[row] in cells[place].measured else None
        if standing is None:
            assert times[row] is None
            continue
        assert units.seconds_text(times[row]) == units.seconds_text(standing.seconds)
        if standing.against_best is not None:
            assert best[row] == pytest.approx(1 / standing.against_best.ratio, rel=1e-4)
            assert results["best_low"][row] == pytest.approx(1 / standing.against_best.high, rel=1e-4)
    for place, cell in enumerate(cells):
        assert column(workloads, "first")[place] == cell.won.name
        assert column(workloads, "state")[place] == cell.won.sure
    assert Sure.DECIDED in column(workloads, "state")
    styles = figures.styles([one["name"] for one in data["contenders"]])
    assert [one["colour"] for one in data["contenders"]] == [style.colour for style in styles.values()]


def test_a_page_keeps_its_limit_by_thinning_rounds_or_says_that_it_cannot(made: Make) -> None:
    """That of a real run is small, with all its rounds."""
    page = render([read_run(REFERENCE)])
    assert len(page) < 640_000 and unpacked(blocks(page)[1])["every"] == 1
    run = made(rounds=600)
    whole = render([run])
    room = len(whole) - len(blocks(whole)[1])
    page = render([run], limit=room + len(blocks(whole)[1]) // 2)
    told = unpacked(blocks(page)[1])
    assert len(page) <= room + len(blocks(whole)[1]) // 2
    assert told["every"] > 1 and told["shown"] == sum(map(len, told["times"]))
    assert unpacked(blocks(render([run], limit=room + 400))[1])["every"] == 0
    with pytest.raises(
        ValueError, match=r"make a page of [\d.]+ KiB without a raw round, more than 97\.7 KiB"
    ):
        render([run], limit=100_000)


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
)
def test_no_text_ends_the_block_of_data(value: Any) -> None:
    letters = packed(value)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", letters)
    assert unpacked(letters) == value and packed(value) == letters


@given(st.floats(1e-300, 1e300), st.integers(1, 4))
def test_a_figure_of_five_digits_reads_as_the_figure_itself(value: float, digits: int) -> None:
    found = figure(value)
    assert found == float(Context(prec=5, rounding=ROUND_05UP).create_decimal(f"{value:.14e}"))
    assert f"{found:.{digits - 1}e}" == f"{float(f'{value:.14e}'):.{digits - 1}e}"
    assert figure(-value) is figure(math.inf) is figure(math.nan) is None and figure(0.0) == 0


@given(
    st.lists(
        st.tuples(st.floats(1e-9, 1e3), st.integers(0, 5), st.booleans(), st.integers(1, 3)), min_size=1
    ),
    st.integers(0, 900),
)
def test_rounds_come_back_to_four_digits_in_the_room_there_is(
    taken: list[tuple[float, int, bool, int]], most: int
) -> None:
    seconds, processes, disturbed, gaps = zip(*taken, strict=True)
    numbers = [sum(gaps[:at]) for at in range(len(gaps))]
    columns = {"round": numbers, "process": processes, "disturbed": disturbed}
    latency = Measurement(
        "latency", "s", seconds, {name: tuple(map(float, each)) for name, each in columns.items()}
    )
    told = unpacked(packed_rounds([latency], LIMIT))
    assert told["schedules"] == [[numbers, list(processes)]]
    assert [one * 10.0 ** told["exponent"][0] for one in told["times"][0]] == pytest.approx(
        seconds, rel=5.1e-4
    )
    assert told["disturbed"] == [[at for at, flag in enumerate(disturbed) if flag]]
    thin = packed_rounds([latency], most)
    assert len(thin) <= most or unpacked(thin)["shown"] == 0


def test_texts_of_a_run_are_one_safe_line_each(made: Make) -> None:
    run = made()
    bad = "a\x1b[31m\u202e\nb" + "x" * 2000
    results = [replace(one, kernel=bad, reason=one.reason and bad) for one in run.results]
    environment = {"cpu": bad, "contenders": {bad: 3}}
    page = render([replace(run, results=results, command=bad, environment=environment)])
    assert not re.search("[\x1b\u202e\n]", json.dumps(unpacked(blocks(page)[0]), ensure_ascii=False))


@pytest.mark.parametrize("kernel", ["a plain kernel", "a <b>kernel</b>"])
def test_the_page_is_the_same_with_a_reports_analysis_and_without(made: Make, kernel: str) -> None:
    run = made(lengths=(64,))
    run.results[1] = replace(run.results[1], kernel=kernel)
    assert render([run], known=[analyse(run)]) == render([run])
