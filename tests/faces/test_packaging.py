"""What is installed is what is in the tree, under one name."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import attnlab

ROOT = Path(__file__).parents[2]
TOPS = ("attnlab", "implementations", "suites")


def packages_in_the_tree() -> set[str]:
    """Every folder with an __init__.py, by the name that it is installed under."""
    files = (file for top in TOPS for file in (ROOT / top).rglob("__init__.py"))
    names = (".".join(file.parent.relative_to(ROOT).parts) for file in files)
    return {name if name.partition(".")[0] == "attnlab" else f"attnlab.{name}" for name in names}


def test_every_package_of_the_tree_is_declared() -> None:
    """One that is missing from the list vanishes from the wheel unnoticed."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert sorted(setup["packages"]) == sorted(packages_in_the_tree())


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder without __init__.py would not be found in a wheel."""
    for top in TOPS:
        for file in (ROOT / top).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


def test_an_install_puts_one_name_at_the_top() -> None:
    """`attnlab`, with implementations and suites within."""
    site = Path(attnlab.__file__).parents[1]
    if site == ROOT:
        pytest.skip("attnlab is installed from a checkout as a link, which copies no files")
    (installed,) = importlib.metadata.distributions(name="attnlab", path=[str(site)])
    files = installed.files or []
    tops = {file.parts[0] for file in files if file.parts[0] != ".." and "dist-info" not in file.parts[0]}
    assert tops == {"attnlab"}
    names = {str(file) for file in files}
    assert {"attnlab/implementations/__init__.py", "attnlab/suites/__init__.py", "attnlab/py.typed"} <= names


def test_the_environments_with_every_backend_install_every_extra() -> None:
    """`all` names all extras that bring a backend, and both environments of tox use it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    (every,) = extras["all"]
    assert re.fullmatch(r"attnlab\[[\w,-]+\]", every)
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    for name in ("all", "report-all"):
        assert "all" in tox[f"testenv:{name}"]["extras"].split(", ")
    assert "attnlab run" in tox["testenv:report-all"]["commands"]
    assert "tox -e report-all" in (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
