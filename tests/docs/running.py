"""What is done with a block of the documentation: run it, or, where its mark says why not, understand it."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml
from blocks import ROOT, Block
from packaging.requirements import Requirement

from attnlab.cli.app import app
from attnlab.runs.plan import Plan, read_plan

#: what a page shows is what is printed, but that ``...`` stands for what differs from machine to machine
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
#: a measured run, of which every reader has a copy
REFERENCE = Path("reports", "reference")
#: languages of blocks that hold no code
SHOWN = {"text", "mermaid"}


@dataclass
class Reader:
    """Somebody who types a page from its top, in a folder of his own, with the run that comes with the repository."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    printed: str | None = None

    def __post_init__(self) -> None:
        shutil.copytree(ROOT / REFERENCE, self.folder / REFERENCE)

    def does(self, block: Block) -> None:
        """One block. Raises AssertionError where it does not do what the page says."""
        before, self.printed = self.printed, None
        if block.mark == "in":
            test = ROOT / block.said
            assert block.page.name in test.read_text(encoding="utf-8"), f"{block.said} does not name it"
        elif block.language in SHOWN:
            if before is not None and not block.parsed:
                self._compare(before, block.text)
        else:
            step = getattr(self, f"_{block.language}", None)
            assert step, f"{block.place}: no test knows the language {block.language!r}; name one"
            step(block)

    def _compare(self, printed: str, shown: str) -> None:
        checker = doctest.OutputChecker()
        if not checker.check_output(shown, printed, COMPARISON):
            raise AssertionError(f"the page shows\n{shown}\nand what came is\n{printed}")

    def _file(self, block: Block) -> Path:
        assert block.title
        path = self.folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return path

    def _python(self, block: Block) -> None:
        code = compile(block.text, block.place, "exec")
        if block.title:
            self._file(block)
        elif not block.parsed:
            printed = io.StringIO()
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
                exec(code, self.names)
            self.printed = printed.getvalue()

    def _toml(self, block: Block) -> None:
        path = self._file(block) if block.title else self.folder / "plan.toml"
        path.write_text(block.text, encoding="utf-8")
        assert Plan.grid(**read_plan(path)).workloads

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _yaml(self, block: Block) -> None:
        for document in yaml.safe_load_all(block.text):
            for line in _strings(document):
                for words in _command_lines(line):
                    understood(words)
        if block.title:
            self._file(block)

    def _bash(self, block: Block) -> None:
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        if block.title:
            self._file(block)
        outcome = [self._command(words, block) for words in block.commands]
        self.printed = "".join(said for said in outcome if said is not None) or None

    def _command(self, words: list[str], block: Block) -> str | None:
        *words, into = [*words[:-2], words[-1]] if words[-2:-1] == [">"] else [*words, None]
        if block.parsed or words[0] != "pytest":  # to collect its tests takes as long as to run them
            understood(words)
        if block.parsed:
            return None
        ours = words[0] in ("attnlab", "pytest")
        written = words[0] == "python" and (self.folder / words[1]).exists()
        assert ours or written, f"{words[0]} is run by nobody here: mark it as parsed, and why"
        more = shlex.split(block.said) if block.mark == "with" and ours else []
        status = int(block.said) if block.mark == "exits with" and words == block.commands[-1] else 0
        done = subprocess.run(
            [sys.executable, *(["-P", "-m", *words] if ours else words[1:]), *more],
            cwd=self.folder,
            env={**environment(), "COLUMNS": "200", "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
        )
        if done.returncode != status:
            raise AssertionError(
                f"{shlex.join(words)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        if into:
            (self.folder / into).write_text(done.stdout, encoding="utf-8")
            return None
        return done.stdout


def environment() -> dict[str, str]:
    """A reader's own: a worker of pytest-xdist switches off the benchmarks of every pytest below it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def understood(words: list[str]) -> None:
    """A command line that its program would take. Raises AssertionError or click.UsageError where it would not."""
    program, *rest = words
    if program == "attnlab":
        _parsed(app, rest)
    elif program.endswith("pip") and rest[:1] == ["install"]:
        for one in rest[1:]:
            if one.startswith("attnlab"):
                unknown = Requirement(one).extras - set(EXTRAS)
                assert not unknown, f"pyproject.toml has no extra {', '.join(sorted(unknown))}"
    elif program == "pytest":
        _collected(rest)


def _collected(words: list[str]) -> None:
    """As pytest reads it, from a checkout; tests that a page writes need not be there."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words, "--collect-only", "-q"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 or "file or directory not found" in done.stderr, done.stderr


def _parsed(command: click.Command, words: list[str]) -> None:
    """As the program reads it; files that it names need not be there."""
    parent = None
    while isinstance(command, click.Group):
        parent = command.make_context(command.name, words, parent=parent)
        words = [*parent._protected_args, *parent.args]
        name, found, words = command.resolve_command(parent, words)
        assert found is not None, f"{command.name} has no command {name}"
        command = found
    with contextlib.suppress(click.exceptions.Exit):  # --help and --version
        try:
            command.make_context(command.name, words, parent=parent)
        except click.BadParameter as refused:
            if "does not exist" not in str(refused):
                raise


def _strings(data: Any) -> list[str]:
    """All strings of a YAML document."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        return [text for one in data for text in _strings(one)]
    return [data] if isinstance(data, str) else []


def _command_lines(text: str) -> list[list[str]]:
    """The command lines of attnlab in what a CI file runs, with 1 for its variables."""
    text = re.sub(r"\$\{\{.*?\}\}|\$\w+", "1", text)
    return [shlex.split(line, comments=True) for line in text.splitlines() if re.match(r"\s*attnlab ", line)]
