"""The README and the pages that it sends a reader to keep their word; that their blocks run, `tests/docs` holds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    """What a new reader needs."""
    assert len(README.splitlines()) < 120


def test_the_example_is_a_backend_in_ten_lines() -> None:
    """That it passes the whole gate, `tests/docs` holds: its page asks."""
    page = (ROOT / "docs" / "how-to" / "own-kernel.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python[^\n]*\n(.*?LIBRARY.*?)```", page, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10


def test_the_options_that_are_explained_are_there() -> None:
    """Each that the page of questions names in its table."""
    from attnlab.cli.app import app

    page = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| option \|.*?\n\n", page, flags=re.DOTALL)
    options = {option for one in app.commands["compare"].params for option in one.opts}
    shown = set(re.findall(r"--[a-z][a-z-]*", table))
    assert len(shown) > 10 and shown <= options


def test_ci_runs_the_test_line() -> None:
    """The line that the script takes from the README is the one a reader copies."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (program,) = re.findall(r"awk '(.*?)'", script)
    try:
        taken = subprocess.run(
            ["awk", program, ROOT / "README.md"], capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("awk is not installed here")
    assert taken.strip().endswith("tox") and taken.strip() in README
