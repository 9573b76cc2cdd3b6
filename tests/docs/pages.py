"""The code blocks of the documentation: where they stand, what they hold, and a reader who does what they say.

A block is run as it stands, unless an HTML comment right before it says otherwise and why:

``<!-- test: parsed: takes minutes -->``  its commands are understood, and not run;
``<!-- test: with --length 32 -->``       each of its `attnlab` commands is run with these options after its own;
``<!-- test: needs pyarrow, duckdb -->``  it is run where these can be imported, and parsed elsewhere;
``<!-- test: in tests/x/test_y.py -->``   that file tests it, and names this page.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from markdown_it import MarkdownIt

from attnlab.__main__ import main
from attnlab.cli import app
from attnlab.runs.plan import Plan, read_plan

ROOT = Path(__file__).parents[2]
#: rendered from percent files, which a test of their own runs
NOTEBOOKS = ROOT / "docs" / "notebooks"
MARK = re.compile(r"<!-- test: (parsed|with|needs|in):? (.+?) -->")
TITLE = re.compile(r'title="([^"]+)"')
#: what a page shows is what is printed, but that ``...`` stands for what differs from machine to machine
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: a measured run, of which every reader has a copy
REFERENCE = Path("reports", "reference")


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
            return any(importlib.util.find_spec(name) is None for name in self.said.split(", "))
        return self.mark == "parsed"


def pages() -> list[Path]:
    """Every Markdown page that holds blocks, but for rendered notebooks."""
    written = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [one for one in written + found if one.parent != NOTEBOOKS and list(blocks(one))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in its order, those in lists and details among them."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in MarkdownIt().enable("table").parse(text):
        if token.type != "fence" or token.map is None:
            continue
        first = token.map[0]
        before = lines[first - 1].strip() if first else ""
        mark = MARK.fullmatch(before)
        assert mark or not before.startswith("<!-- test:"), f"{page}:{first}: a mark that is not known"
        language, _, rest = token.info.strip().partition(" ")
        title = TITLE.search(rest)
        said = mark.groups() if mark else ("", "")
        yield Block(page, first + 1, language, title[1] if title else None, token.content, *said)


def script(path: Path) -> Any:
    """A script that makes pages, as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_script", path)
    assert spec and spec.loader
    sys.modules[spec.name] = found = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(found)
    return found


class Reader:
    """Somebody who types a page from its top, in a folder of his own, with the run that comes with the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, dict[str, Any]()
        self.printed = ""
        shutil.copytree(ROOT / REFERENCE, folder / REFERENCE)

    def does(self, block: Block) -> None:
        """One block. Raises AssertionError where it does not do what the page says."""
        if block.mark == "in":
            assert block.page.name in (ROOT / block.said).read_text(encoding="utf-8")
            return
        if block.language in ("text", "mermaid"):
            if self.printed and not block.parsed:
                checker = doctest.OutputChecker()
                right = checker.check_output(block.text, self.printed, COMPARISON)
                assert right, f"the page shows\n{block.text}\nand what came is\n{self.printed}"
            self.printed = ""
            return
        self.printed = ""
        path = self.folder / (block.title or "plan.toml")
        if block.title or block.language == "toml":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            self._python(compile(block.text, f"{block.page}:{block.line}", "exec"), block)
        elif block.language == "toml":
            assert Plan.grid(**read_plan(path)).workloads
        elif block.language == "yaml":  # a CI file, with 1 for its variables
            text = re.sub(r"\$\{\{.*?\}\}|\$\w+", "1", block.text)
            for line in re.findall(r"^[ -]*(?:run: )?(attnlab .*)$", text, re.MULTILINE):
                understood(shlex.split(line, comments=True))
        else:
            assert block.language == "bash", "a language that no test knows"
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
            for line in block.text.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    self._command(words, block)

    def _python(self, code: Any, block: Block) -> None:
        if not block.title and not block.parsed:
            printed = io.StringIO()
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
                exec(code, self.names)
            self.printed = printed.getvalue()

    def _command(self, words: list[str], block: Block) -> None:
        *words, into = [*words[:-2], words[-1]] if words[-2:-1] == [">"] else [*words, ""]
        understood(words)
        if block.parsed:
            return
        if block.mark == "with" and words[0] in ("attnlab", "pytest"):
            words += shlex.split(block.said)
        if words[0] == "attnlab":
            printed = self._attnlab(words[1:])
        else:
            assert words[0] in ("pytest", "python"), f"{words[0]} is run by nobody here: say why"
            module = ["-P", "-m"] if words[0] == "pytest" else []
            # without what is a worker's of pytest-xdist, which switches off the benchmarks of every pytest below it
            ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
            command = [sys.executable, *module, *words[not module :]]
            done = subprocess.run(command, cwd=self.folder, env=ours, capture_output=True, text=True)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            printed = done.stdout
        if into:
            (self.folder / into).write_text(printed, encoding="utf-8")
        else:
            self.printed += printed

    def _attnlab(self, words: list[str]) -> str:
        printed = io.StringIO()
        try:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
                main(words)
        except SystemExit as end:
            assert not end.code, f"attnlab {shlex.join(words)} ended with {end.code}\n{printed.getvalue()}"
        return printed.getvalue()


def understood(words: list[str]) -> None:
    """A command line of ours that would be taken; files that it names need not be there."""
    if words[0] != "attnlab":
        return
    parent = app.make_context("attnlab", words[1:])
    _, command, rest = app.resolve_command(parent, [*parent._protected_args, *parent.args])
    assert command is not None, f"there is no command {words[1]}"
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(command.name, rest, parent=parent)
