"""The code blocks of the documentation: where they are, what they contain, and a reader that runs them.

A block is run as written, unless an HTML comment directly before it says otherwise, and why:

``<!-- test: parsed: takes minutes -->``  its commands are parsed, but not run;
``<!-- test: with --length 32 -->``       its `attnlab` commands are run with these options after their own.

A block that installs packages is only parsed, without a comment.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
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
#: pages rendered from scripts, which have their own test
NOTEBOOKS = ROOT / "docs" / "notebooks"
MARK = re.compile(r"<!-- test: (parsed|with):? (.+?) -->")
INSTALLS = re.compile(r"\b(pip|apt-get) install\b")
#: a page shows what is printed; ``...`` stands for what differs between machines
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: a plan for commands that measure, without the machine's limits, which take ten seconds
QUICK = "ceilings = false\nmemory = false\n"


@dataclass(frozen=True)
class Block:
    """A fenced block of `page` that begins in `line`. `mark` and `said` are from the comment before it."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    mark: str = ""
    said: str = ""


def pages() -> list[Path]:
    """Every Markdown page with code blocks, except rendered notebooks."""
    written = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [one for one in written + found if one.parent != NOTEBOOKS and list(blocks(one))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page in their order, including those in lists and details."""
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
        title = re.search(r'title="([^"]+)"', rest)
        installs = ("parsed", "installs packages") if INSTALLS.search(token.content) else ("", "")
        said = mark.groups() if mark else installs
        yield Block(page, first + 1, language, title[1] if title else None, token.content, *said)


def script(path: Path) -> Any:
    """Load a script that makes pages, as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_script", path)
    assert spec and spec.loader
    sys.modules[spec.name] = found = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(found)
    return found


class Reader:
    """Runs the blocks of a page from its top, in a folder of its own that has a copy of the reference run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self.printed = folder, dict[str, Any](), ""
        shutil.copytree(ROOT / "reports" / "reference", folder / "reports" / "reference")
        (folder / "quick.toml").write_text(QUICK, encoding="utf-8")

    def does(self, block: Block) -> None:
        """Run one block. Raises AssertionError if it does not do what the page says."""
        printed, self.printed = self.printed, ""
        if block.language == "text":
            right = doctest.OutputChecker().check_output(block.text, printed, COMPARISON)
            assert right or not printed, f"the page shows\n{block.text}\nand what came is\n{printed}"
            return
        path = self.folder / (block.title or "plan.toml")
        if block.title or block.language == "toml":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            code = compile(block.text, f"{block.page}:{block.line}", "exec")
            if not block.title and block.mark != "parsed":
                with self._typed():
                    exec(code, self.names)
        elif block.language == "toml":
            assert Plan.grid(**read_plan(path)).workloads
        elif block.language == "yaml":  # a CI file, with its variables replaced by 1
            text = re.sub(r"\$\{\{.*?\}\}|\$\w+", "1", block.text)
            for line in re.findall(r"^[ -]*(?:run: )?(attnlab .*)$", text, re.MULTILINE):
                understood(shlex.split(line, comments=True))
        else:
            assert block.language == "bash", "a language that no test knows"
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
            for line in block.text.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    self._command(words, block)

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Run in the reader's folder, and keep what is printed."""
        printed = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            yield
        self.printed += printed.getvalue()

    def _command(self, words: list[str], block: Block) -> None:
        with self._typed():
            understood(words[:-2] if words[-2:-1] == [">"] else words)
        if block.mark == "parsed":
            return
        assert words[0] == "attnlab", f"{words[0]} is run by nobody here: say why"
        with self._typed():
            try:
                main(words[1:] + shlex.split(block.said))
            except SystemExit as end:
                assert not end.code, f"{shlex.join(words)} ended with {end.code}"


def understood(words: list[str]) -> None:
    """Assert that a command line of attnlab would be accepted. Files that it names need not exist."""
    if words[0] != "attnlab":
        return
    parent = app.make_context("attnlab", words[1:])
    _, command, rest = app.resolve_command(parent, [*parent._protected_args, *parent.args])
    assert command is not None, f"there is no command {words[1]}"
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(command.name, rest, parent=parent).close()
