"""The types are right, and the documentation site is built without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "words", ["mypy attnlab implementations", "mkdocs build --strict --quiet --site-dir {}"]
)
def test_a_tool_has_nothing_to_say(words: str, tmp_path: Path) -> None:
    """The tools come with the dependency groups `types` and `docs`."""
    command = words.format(tmp_path).split()
    pytest.importorskip(command[0], reason="pip install --group types --group docs")
    where = {"cwd": Path(__file__).parents[2], "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-P", "-m", *command], **where)
    assert done.returncode == 0, done.stdout + done.stderr
