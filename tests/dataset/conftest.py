"""Runs made up from cost models, in folders of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.runs.store import Run

FOUR = ("torch_eager", "torch_eager#2", "torch_sdpa", "torch_sdpa_flash", "torch_sdpa_math")
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


@pytest.fixture
def two(made: Callable[..., Run], tmp_path: Path) -> tuple[Path, list[Run]]:
    """A dataset of two runs, of two machines."""
    from attnlab.runs import dataset

    runs = [made(contenders=FOUR), made(contenders=FOUR, wrong=("torch_sdpa_math",))]
    runs[1].environment = {**runs[1].environment, "cpu": "Another CPU"}
    runs[1].save()
    dataset.collect([run.folder for run in runs], tmp_path / "all")
    return tmp_path / "all", runs
