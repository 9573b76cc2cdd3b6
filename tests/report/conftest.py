"""Runs made up from cost models, for the report's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.runs.store import Run


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run in a folder of its own; the arguments are those of `synthetic`."""
    count = 0

    def make(**options: Any) -> Run:
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        folder.mkdir()
        return synthetic(folder, **options)

    return make
