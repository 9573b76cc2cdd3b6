"""Stored runs as one page to explore: a single HTML file that opens from disk and needs no network.

Its scripts (``assets/*.js``) select and draw, by Observable Plot and d3, which stand beside them; its policy lets in
nothing but itself: ``default-src 'none'``, no network, no frame, no picture, no style or script but those whose SHA-256
stands there. The data stands packed in blocks that no browser runs, and that the page's script unpacks.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from attnlab.errors import NotStored
from attnlab.report.analysis import Analysis
from attnlab.report.explore_data import packed, packed_rounds, page_data
from attnlab.runs.store import Run
from attnlab.units import bytes_text

PAGE = "explore.html"
#: bytes that a page takes at most
LIMIT = 5_000_000
_LIBRARIES = ("d3-7.9.2", "plot-0.6.17")
#: the page's own scripts, in the order in which one uses another
_SCRIPTS = ("data", "parts", "chart", "winners", "figures", "rounds", "runs", "page")


def write(runs: Sequence[Run], file: Path, known: Sequence[Analysis] = ()) -> Path:
    """Write the page of `runs` into `file`, which is replaced, and return its path. Raises NotStored, in one line.

    known : reports' analyses of some of the runs, which then need not be judged again.
    """
    text = render(runs, known=known)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise NotStored(
            f"{file} cannot be written: {fault.strerror}; name another place with --out"
        ) from None
    return file


def render(runs: Sequence[Run], limit: int = LIMIT, known: Sequence[Analysis] = ()) -> str:
    """The page of one run or several, in at most `limit` bytes: raw rounds are left out evenly until it fits.

    Raises ValueError for no run, and where a page without any raw round would be larger than `limit`.
    """
    if not runs:
        raise ValueError("a page needs at least one run, got none")
    data, latencies = page_data(runs, known)
    block = packed(data)
    page = _fill(block, packed_rounds(latencies, limit - len(_fill(block, "").encode())))
    size = len(page.encode())
    if size > limit:
        answers = sum(len(run.results) for run in runs)
        raise ValueError(
            f"{answers:,} results make a page of {bytes_text(size)} without a raw round, more than "
            f"{bytes_text(limit)}; give fewer runs, or smaller ones"
        )
    return page


def _fill(data: str, rounds: str) -> str:
    from jinja2 import Environment, StrictUndefined

    # each library with its licence, which asks to stand in every copy
    scripts = [f"/*\n{_asset(f'{name}.LICENSE')}*/\n{_asset(f'{name}.min.js')}" for name in _LIBRARIES]
    own = "\n".join(f"// {name}.js\n{_asset(f'{name}.js')}" for name in _SCRIPTS)
    scripts.append(f'(async () => {{\n"use strict";\n{own}}})();\n')  # in one scope, which waits for the data
    style = _asset("page.css")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = Environment(undefined=StrictUndefined, autoescape=True).from_string(_asset("page.html.j2"))
    return template.render(policy=policy, style=style, scripts=scripts, data=data, rounds=rounds)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    """The text of a file of the page, with line ends as a browser reads them."""
    text = (resources.files("attnlab.report") / "assets" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")
