"""Does each backend agree with theory? Every experiment of `attnlab numerics`, with every backend, in this process."""

import pytest

from attnlab.lab import EXPERIMENTS, run_experiment
from attnlab.pytest_plugin import SETTINGS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each backend of the contenders."""
    contenders = metafunc.config.stash[SETTINGS].contenders.values()
    metafunc.parametrize("backend", list(dict.fromkeys(one.backend for one in contenders)))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment(experiment: str, backend: str, pytestconfig: pytest.Config) -> None:
    """Every row that was measured with the backend agrees with its prediction."""
    found = run_experiment(experiment, [backend], folders=pytestconfig.stash[SETTINGS].folders)
    if not any(row.where.get("backend") == backend for row in found.rows):
        pytest.skip(found.missing.get(backend, f"{backend} was not measured"))
    assert [row for row in found.rows if not row.passed] == [], found.conclusion
