"""The file of the page: whole in itself, and small."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from opened_page import Make

from attnlab.report.explore_page import render
from attnlab.runs.store import read_run

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


def rounds(page: str) -> tuple[int, Any]:
    """How many letters of the page the rounds take, and what they say."""
    _, letters = re.findall(r'<script type="text/plain" id="\w+">([^<]*)</script>', page)
    return len(letters), json.loads(gzip.decompress(base64.b64decode(letters, validate=True)))


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


def test_a_page_keeps_its_limit_by_thinning_rounds_or_says_that_it_cannot(made: Make) -> None:
    """That of a real run is small, with all its rounds."""
    page = render([read_run(REFERENCE)])
    assert len(page) < 640_000 and rounds(page)[1]["every"] == 1
    run = made(rounds=600)
    whole = render([run])
    room = len(whole) - rounds(whole)[0]
    page = render([run], limit=room + rounds(whole)[0] // 2)
    told = rounds(page)[1]
    assert len(page) <= room + rounds(whole)[0] // 2
    assert told["every"] > 1 and told["shown"] == sum(map(len, told["times"]))
    assert rounds(render([run], limit=room + 400))[1]["every"] == 0
    with pytest.raises(
        ValueError, match=r"make a page of [\d.]+ KiB without a raw round, more than 97\.7 KiB"
    ):
        render([run], limit=100_000)
