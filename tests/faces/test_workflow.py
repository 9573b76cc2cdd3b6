"""The workflow file runs what tox.ini holds, and tox.ini runs every Python that the package says it supports."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="pyyaml is not installed; pip install 'attnlab[test]'")

ROOT = Path(__file__).parents[2]
#: those for which no interpreter is needed that the others do not need
ENVIRONMENTS = ("lint", "types")


def tox() -> configparser.ConfigParser:
    """What tox.ini says."""
    found = configparser.ConfigParser(interpolation=None)
    found.read(ROOT / "tox.ini", encoding="utf-8")
    return found


def default_environments() -> list[str]:
    """What `tox` alone runs."""
    return [one.strip() for one in re.split(r"[,\n]", tox()["tox"]["env_list"]) if one.strip()]


def workflow() -> dict[Any, Any]:
    """What the workflow file says."""
    found = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def jobs() -> list[dict[str, str]]:
    """The environment and the interpreter of each job."""
    return list(workflow()["jobs"]["tox"]["strategy"]["matrix"]["include"])


def test_every_python_that_is_supported_is_tested() -> None:
    """From the least that the package asks for; those that are not there are left out, and CI has them all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    wanted = ["py311", "py312", "py313"]
    assert default_environments() == [*ENVIRONMENTS, *wanted]
    assert tox()["tox"]["skip_missing_interpreters"] == "true"
    told = {f"Programming Language :: Python :: 3.{name[3:]}" for name in wanted}
    assert told <= set(project["classifiers"])


def test_the_workflow_runs_every_environment_that_tox_runs_alone() -> None:
    """Each with the interpreter that its name says; beside them the tests that take long."""
    assert [one["environment"] for one in jobs()] == [*default_environments(), "thorough"]
    for one in jobs():
        found = re.fullmatch(r"py3(\d+)", one["environment"])
        assert one["python"] == (f"3.{found[1]}" if found else "3.11")


@pytest.mark.parametrize("name", ["report", "report-all"])
def test_a_job_that_measures_for_a_user_leaves_its_threads_alone(name: str) -> None:
    """Tests take one thread each; a report of one thread would answer a question that nobody asked."""
    settings = tox()[f"testenv:{name}"].get("set_env", "{[testenv]set_env}")
    while found := re.search(r"\{\[(.+?)\]set_env\}", settings):
        settings = settings.replace(found[0], tox()[found[1]]["set_env"])
    assert "PIP_CONSTRAINT" in settings
    assert "THREADS" not in settings


def test_every_command_of_the_workflow_is_one_of_tox() -> None:
    """Nothing is tested there by other means than here."""
    (job,) = workflow()["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["python -m pip install tox", "tox -e ${{ matrix.environment }}"]
    known = set(tox().sections())
    for one in jobs():
        name = one["environment"]
        assert f"testenv:{name}" in known or re.fullmatch(r"py3\d+", name), f"tox.ini has no {name}"


def test_pythons_are_text() -> None:
    """3.10 as a number would be 3.1."""
    assert all(isinstance(one["python"], str) for one in jobs())


def test_the_versions_are_those_of_the_constraints_file() -> None:
    """Where a smaller build of PyTorch lies is a setting of the repository; none: what pip finds by itself."""
    assert "{toxinidir}{/}constraints.txt" in tox()["testenv"]["set_env"]
    (job,) = workflow()["jobs"].values()
    assert job["env"] == {"PIP_EXTRA_INDEX_URL": "${{ vars.PIP_EXTRA_INDEX_URL }}"}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==[\d.]+$", pinned, flags=re.MULTILINE)


def test_it_may_read_and_nothing_else() -> None:
    assert workflow()["permissions"] == {"contents": "read"}
