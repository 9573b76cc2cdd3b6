"""Imports run down the floors that `docs/architecture.md` draws: none goes up, and none in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnlab

HOME = Path(attnlab.__file__).parent
#: bottom up; packages of one floor do not import each other
FLOORS: tuple[tuple[str, ...], ...] = (
    ("contract",),
    ("libraries", "theory", "statistics", "figures"),
    ("accuracy",),
    ("measuring",),
    ("numerics",),
    ("claims",),
    ("program",),
    ("diagnosis",),
    ("report", "sweep"),
    ("dataset",),
    ("explore",),
    ("commands", "pytest_plugin", "routing"),
)
FLOOR = {package: height for height, floor in enumerate(FLOORS) for package in floor}


def imported(source: str, package: str) -> Iterator[str]:
    """The packages of attnlab that a module of `package` imports, wherever in the module."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "attnlab" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != package:
                yield parts[1]


def test_every_package_has_a_floor() -> None:
    """Modules of the top are the public face: they import what is asked of them when it is asked."""
    packages = {folder.name for folder in HOME.iterdir() if (folder / "__init__.py").exists()}
    assert packages - {"implementations", "suites"} == set(FLOOR)
    assert {file.stem for file in HOME.glob("*.py")} == {"__init__", "__main__", "fixtures"}


@pytest.mark.parametrize("package", FLOOR)
def test_imports_run_downwards(package: str) -> None:
    """Whoever is imported lives on a lower floor."""
    wrong = {
        f"{file.relative_to(HOME)} imports {other}"
        for file in (HOME / package).rglob("*.py")
        for other in imported(file.read_text(encoding="utf-8"), package)
        if FLOOR[other] >= FLOOR[package]
    }
    assert not wrong


def test_an_import_is_seen_wherever_it_stands() -> None:
    """So that the test above can fail."""
    source = "import os\nfrom attnlab import report\ndef f():\n    from attnlab.program.plan import Plan\n"
    assert set(imported(source, "contract")) == {"report", "program"}
