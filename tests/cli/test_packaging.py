"""What is installed is what is in the tree, CI runs what tox holds, and the README's line is the one that CI runs."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import attnlab
from attnlab.cli.app import app

ROOT = Path(__file__).parents[2]
TOPS = ("attnlab", "implementations", "suites")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini", encoding="utf-8")


def test_every_folder_with_modules_is_a_package_that_is_declared() -> None:
    """One that is missing from the list vanishes from the wheel unnoticed."""
    folders = {file.parent for top in TOPS for file in (ROOT / top).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    names = (".".join(folder.relative_to(ROOT).parts) for folder in folders)
    found = {name if name.partition(".")[0] == "attnlab" else f"attnlab.{name}" for name in names}
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_an_install_puts_one_name_at_the_top() -> None:
    """`attnlab`, with implementations and suites within."""
    site = Path(attnlab.__file__).parents[1]
    if site == ROOT:
        pytest.skip("attnlab is installed from a checkout as a link, which copies no files")
    (installed,) = importlib.metadata.distributions(name="attnlab", path=[str(site)])
    names = {str(file) for file in installed.files or []}
    assert {name.split("/")[0] for name in names if not re.match(r"\.\.|.*dist-info", name)} == {"attnlab"}
    assert {"attnlab/implementations/__init__.py", "attnlab/suites/__init__.py", "attnlab/py.typed"} <= names


def test_the_workflow_runs_tox_with_every_python_that_is_supported() -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed; pip install 'attnlab[test]'")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    jobs = {one["environment"]: one["python"] for one in job["strategy"]["matrix"]["include"]}
    told = re.findall(r"Python :: (3\.\d+)", " ".join(PYPROJECT["project"]["classifiers"]))
    assert {f"py{one.replace('.', '')}" for one in told} <= set(jobs)
    for name, python in jobs.items():
        versioned = re.fullmatch(r"py3(\d+)", name)
        assert versioned or f"testenv:{name}" in TOX, f"tox.ini has no {name}"
        assert python == (f"3.{versioned[1]}" if versioned else told[0])


@pytest.mark.parametrize("name", ["report", "report-all"])
def test_a_job_that_measures_for_a_user_leaves_its_threads_alone(name: str) -> None:
    """Tests take one thread each; a report of one thread would answer a question that nobody asked."""
    settings = TOX[f"testenv:{name}"].get("set_env", "{[testenv]set_env}")
    while found := re.search(r"\{\[(.+?)\]set_env\}", settings):
        settings = settings.replace(found[0], TOX[found[1]]["set_env"])
    assert "PIP_CONSTRAINT" in settings and "THREADS" not in settings


def test_ci_runs_the_test_line_of_the_readme() -> None:
    readme = ROOT / "README.md"
    (program,) = re.findall(r"awk '(.*?)'", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    taken = subprocess.run(["awk", program, readme], capture_output=True, text=True, check=True).stdout
    assert taken.strip().endswith("tox") and taken.strip() in readme.read_text(encoding="utf-8")


def test_the_options_that_the_page_of_questions_explains_are_there() -> None:
    page = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| option \|.*?\n\n", page, flags=re.DOTALL)
    shown = set(re.findall(r"--[a-z][a-z-]*", table))
    assert shown and shown <= {option for one in app.commands["compare"].params for option in one.opts}
