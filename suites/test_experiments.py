"""Does each backend obey theory? Every experiment of `attnlab numerics`, through every backend."""

import pytest

from attnlab.lab import EXPERIMENTS
from attnlab.pytest_plugin.plugin import Confirmed


@pytest.mark.parametrize("experiment", list(EXPERIMENTS))
def test_experiment(confirmed: Confirmed, experiment: str, backend: str) -> None:
    """Every row of what was measured through the backend agrees with its prediction."""
    confirmed(experiment, backend)
