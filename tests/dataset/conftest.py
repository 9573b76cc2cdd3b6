"""Runs made up from cost models, in folders of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.program.store import Run

SMALL = {"lengths": (64, 128), "heads": (1, 4), "contenders": ("torch_eager", "torch_eager#2", "torch_sdpa")}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run with an id of its own; the arguments are those of `synthetic`, small where they say nothing."""
    count = 0

    def make(**options: Any) -> Run:
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        folder.mkdir()
        run = synthetic(folder, **{**SMALL, "seed": count, **options})
        run.id = f"{count:016x}"
        run.save()
        return run

    return make
