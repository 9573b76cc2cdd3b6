"""The workflow file runs what tox.ini holds, with every Python that the package says it supports."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="pyyaml is not installed; pip install 'attnlab[test]'")

ROOT = Path(__file__).parents[2]


def tox() -> configparser.ConfigParser:
    """What tox.ini says."""
    found = configparser.ConfigParser(interpolation=None)
    found.read(ROOT / "tox.ini", encoding="utf-8")
    return found


def test_the_workflow_runs_tox_with_every_python_that_is_supported() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    jobs = {one["environment"]: one["python"] for one in job["strategy"]["matrix"]["include"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert {f"py{one.replace('.', '')}" for one in told} <= set(jobs)
    for name, python in jobs.items():
        versioned = re.fullmatch(r"py3(\d+)", name)
        assert versioned or f"testenv:{name}" in tox(), f"tox.ini has no {name}"
        assert python == (f"3.{versioned[1]}" if versioned else told[0])


@pytest.mark.parametrize("name", ["report", "report-all"])
def test_a_job_that_measures_for_a_user_leaves_its_threads_alone(name: str) -> None:
    """Tests take one thread each; a report of one thread would answer a question that nobody asked."""
    settings = tox()[f"testenv:{name}"].get("set_env", "{[testenv]set_env}")
    while found := re.search(r"\{\[(.+?)\]set_env\}", settings):
        settings = settings.replace(found[0], tox()[found[1]]["set_env"])
    assert "PIP_CONSTRAINT" in settings
    assert "THREADS" not in settings
