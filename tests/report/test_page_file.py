"""The file of the page: whole in itself, small, and with the report's own figures in it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from opened_page import Make

from attnlab import figures
from attnlab.judge.ranking import Sure
from attnlab.report.analysis import analyse
from attnlab.report.explore_page import render
from attnlab.runs.store import read_run
from attnlab.text import seconds_text

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
        assert seconds_text(times[row]) == seconds_text(standing.seconds)
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
