"""The page as one file: template, style, scripts and data put together, under a policy that lets nothing else in.

``default-src 'none'``: no network, no frame, no picture, no style or script but those whose SHA-256 stands in the
policy. The data stands packed in blocks that no browser runs, and that the page's script unpacks.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from attnlab.errors import NotStored
from attnlab.report import page_rounds as rounds
from attnlab.report.analysis import Analysis
from attnlab.report.page_data import page_data
from attnlab.report.page_packed import packed
from attnlab.runs.store import Run
from attnlab.units import bytes_text

PAGE = "explore.html"
#: bytes that a page takes at most
LIMIT = 5_000_000
_LIBRARIES = ("d3-7.9.2", "plot-0.6.17")
_STYLES = ("page.css", "parts.css")
#: the page's own scripts, in the order in which one uses another
_SCRIPTS = (
    "unpacked",
    "dom",
    "units",
    "data",
    "quantities",
    "filters",
    "tip",
    "chart",
    "axes",
    "answer",
    "winners",
    "figures",
    "ranking",
    "rounds",
    "pair",
    "machines",
    "table",
    "page",
)


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
    """The page of one run or several, in at most `limit` bytes where all but the raw rounds take less.

    Raises ValueError for no run, and where a page without any raw round would be larger than `limit`.
    """
    if not runs:
        raise ValueError("a page needs at least one run, got none")
    data, every = page_data(runs, known)
    block = packed(data)
    rest = len(_fill(block, "").encode())
    page = _fill(block, rounds.fitting(every, limit - rest))
    size = len(page.encode())
    if size > limit:
        answers = len(data["results"]["contender"])
        raise ValueError(
            f"{answers:,} results make a page of {bytes_text(size)} without a raw round, more than "
            f"{bytes_text(limit)}; give fewer runs, or smaller ones"
        )
    return page


def _fill(data: str, raw: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("attnlab.report", "assets"), undefined=StrictUndefined, autoescape=True
    )
    style, scripts = "".join(map(asset, _STYLES)), [*map(_library, _LIBRARIES), _own_script()]
    return environment.get_template("page.html.j2").render(
        policy=policy(style, scripts), style=style, scripts=scripts, data=data, rounds=raw
    )


def policy(style: str, scripts: Sequence[str]) -> str:
    """The content security policy that allows these inline texts and nothing else."""
    allowed = " ".join(map(_hash, scripts))
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def asset(name: str) -> str:
    """The text of a file of the page, with line ends as a browser reads them."""
    text = (resources.files("attnlab.report") / "assets" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def _library(name: str) -> str:
    """A library with its licence, which asks to stand in every copy."""
    return f"/*\n{asset(f'{name}.LICENSE')}*/\n{asset(f'{name}.min.js')}"


def _own_script() -> str:
    """The page's own files in one scope, so that they see each other and nothing else does; it waits for the data."""
    parts = [f"// {name}.js\n{asset(f'{name}.js')}" for name in _SCRIPTS]
    return '(async () => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
