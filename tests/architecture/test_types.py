"""Types are right, and the site of the documentation is built without a warning."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("needs", "words"),
    [("mypy", "mypy attnlab implementations"), ("mkdocs_click", "mkdocs build --strict --quiet --site-dir")],
)
def test_a_tool_has_nothing_to_say(needs: str, words: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip("pip install --group types --group docs")
    place = [str(tmp_path)] if words.endswith("-dir") else []
    command = [sys.executable, "-P", "-m", *words.split(), *place]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
