"""Every package and data file of the tree is declared for the wheel, and CI runs the test command of the README."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOPS = ("attnlab", "implementations", "suites")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_with_modules_is_a_package_that_is_declared() -> None:
    """A package that is not declared would be missing from the wheel without notice."""
    folders = {file.parent for top in TOPS for file in (ROOT / top).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    names = (".".join(folder.relative_to(ROOT).parts) for folder in folders)
    found = {name if name.partition(".")[0] == "attnlab" else f"attnlab.{name}" for name in names}
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_every_file_of_data_is_declared() -> None:
    """For example the template of a page or a table of claims."""
    declared = PYPROJECT["tool"]["setuptools"]["package-data"]
    matched = {
        file
        for package, patterns in declared.items()
        for pattern in patterns
        for file in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    every = {file for file in (ROOT / "attnlab").rglob("*") if file.is_file()}
    assert {file for file in every if file.suffix not in (".py", ".pyc", ".pyi")} <= matched


def test_ci_runs_the_test_line_of_the_readme() -> None:
    readme = ROOT / "README.md"
    (program,) = re.findall(r"awk '(.*?)'", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    taken = subprocess.run(["awk", program, readme], capture_output=True, text=True, check=True).stdout
    assert taken.strip().endswith("tox") and taken.strip() in readme.read_text(encoding="utf-8")
