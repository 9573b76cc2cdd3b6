"""Runs made up from cost models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.runs.store import Run


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run in a folder of its own, a small one by default; the arguments are those of `synthetic`."""

    def make(**options: Any) -> Run:
        place = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        return synthetic(place, **{"lengths": (64, 256, 1024), "heads": (1, 4), **options})

    return make
