"""A new mask, library, direction or metric is one class and its test, as the diffs in `examples` show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab
import attnlab.implementations

DIFFS = sorted((Path(__file__).parent / "examples").glob("*.diff"))


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_a_diff_adds_to_one_file_of_the_package_and_has_a_test(diff: Path) -> None:
    """Nothing is changed, and no other file is touched."""
    text = diff.read_text(encoding="utf-8")
    own, test = re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE)
    assert own.startswith("attnlab/") and re.fullmatch(r"tests/.+/test_\w+\.py", test)
    assert not re.search(r"^-(?!--)", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("git") is None, reason="git, which applies the diffs, is not installed")
def test_with_the_diffs_applied_their_tests_pass(tmp_path: Path) -> None:
    """All of them together, in a copy of the package."""
    pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    for package in (attnlab, attnlab.implementations):
        target = tmp_path / package.__name__.replace(".", "/")
        shutil.copytree(
            package.__path__[0], target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    # a worker of pytest-xdist says so to every pytest below it; a repository above takes no part
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "apply", *map(str, DIFFS)], cwd=tmp_path, env=own, check=True)
    words = ("-m", "pytest", "-q", "--rootdir", ".", "--import-mode=importlib", "tests")
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=tmp_path, env=own, capture_output=True, text=True
    )
    assert f"{len(DIFFS)} passed" in done.stdout, done.stdout + done.stderr
