"""The code blocks of the documentation: where they stand, what they hold, and how each of them is tested.

A block is run as it stands, unless an HTML comment right before it says otherwise and why:

``<!-- test: parsed: takes minutes -->``  its commands are understood, and not run;
``<!-- test: with --length 32 -->``       each of its `attnlab` commands is run with these options after its own;
``<!-- test: exits with 1 -->``           its last command ends with this status;
``<!-- test: needs pyarrow, duckdb -->``  it is run where these can be imported, and parsed elsewhere;
``<!-- test: in tests/x/test_y.py -->``   that file tests it, and names this page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: rendered from percent files, which a test of their own runs
NOTEBOOKS = ROOT / "docs" / "notebooks"
MARK = re.compile(r"<!-- test: (parsed|with|exits with|needs|in):? (.+?) -->")
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of `page`, whose fence stands in `line`, with the mark that stands before it."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    mark: str = ""
    said: str = ""

    @property
    def parsed(self) -> bool:
        """Whether it is understood only, and not run."""
        if self.mark == "needs":
            return any(find_spec(name) is None for name in self.said.split(", "))
        return self.mark == "parsed"

    @property
    def place(self) -> str:
        """Where a person finds it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The command lines of a shell block, each cut into words, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def pages() -> list[Path]:
    """Every Markdown page that a person writes or reads, but for rendered notebooks."""
    written = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found = sorted((ROOT / "docs").rglob("*.md"))
    return written + [page for page in found if page.parent != NOTEBOOKS]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in its order, those in lists and details among them."""
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in MarkdownIt().enable("table").parse(text):
        if token.type != "fence" or token.map is None:
            continue
        first = token.map[0]
        before = lines[first - 1].strip() if first else ""
        mark = MARK.fullmatch(before)
        if before.startswith("<!-- test:") and not mark:
            raise ValueError(f"{page.name}:{first}: a mark that is not known: {before}")
        language, _, rest = token.info.strip().partition(" ")
        title = TITLE.search(rest)
        yield Block(
            page,
            first + 1,
            language,
            title[1] if title else None,
            token.content,
            *(mark.groups() if mark else ("", "")),
        )
