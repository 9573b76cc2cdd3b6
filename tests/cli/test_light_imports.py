"""Heavy packages are not imported before they are needed: checked in new interpreters, by a check that can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

HEAVY = {"torch", "pandas", "matplotlib", "scipy", "memray", "cpuinfo", "pytest", "numba", "jax", "rich"}
#: packages in which no module imports a heavy package
PACKAGES = ("workload", "backends", "stats", "race", "runs")
LIGHT = [
    f"attnlab.{package}.{file.stem}"
    for package in PACKAGES
    for file in sorted((Path(attnlab.__file__).parent / package).glob("[!_]*.py"))
]


def imported_by(code: str) -> set[str]:
    """The top-level packages that are loaded after `code` has run in a new Python."""
    show = "import sys; print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-P", "-c", f"{code}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded")[2].split())


def test_the_instruments_import_nothing_heavy() -> None:
    """Listing the backends imports none of their libraries."""
    assert len(LIGHT) > 30, "the packages are there"
    first = "import attnlab; attnlab.backends(); attnlab.Workload()"
    assert imported_by("\n".join([first, *(f"import {name}" for name in LIGHT)])) & HEAVY == set()
    assert "pandas" in imported_by("import pandas"), "the check can fail"


@pytest.mark.parametrize("words", [None, [], ["--help"]])
def test_the_list_of_commands_takes_python_and_click_alone(words: list[str] | None) -> None:
    run = "import attnlab\nfrom attnlab.__main__ import main\ntry: main({})\nexcept SystemExit: pass\n"
    found = imported_by("import attnlab" if words is None else run.format(words))
    assert found & {*HEAVY, "numpy", "psutil", "msgspec"} == set()
    assert ("click" in found) == (words is not None), "the check can fail"
