"""The README keeps its word: its example is a right backend, and CI runs its test line."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from attnlab.program.check import check

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_is_a_right_backend_in_ten_lines(tmp_path: Path) -> None:
    """As written, it passes the whole gate."""
    (example,) = re.findall(r"```python\n(.*?LIBRARY.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    (tmp_path / "my_attention.py").write_text(example)
    found = check("my_attention", folders=[str(tmp_path)])
    assert found.passed, found.reason


def test_every_command_line_that_it_shows_is_understood() -> None:
    """With its options: a reader may type any of them."""
    from attnlab.commands.app import app

    blocks = "\n".join(re.findall(r"```\n(.*?)```", README, flags=re.DOTALL))
    lines = re.findall(r"^attnlab (\w+)(.*)", blocks, flags=re.MULTILINE)
    assert {"compare", "run", "check"} <= {name for name, _ in lines}
    for name, rest in lines:
        app.commands[name].make_context(name, shlex.split(rest, comments=True))
    (table,) = re.findall(r"\| option \|.*?\n\n", README, flags=re.DOTALL)
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
