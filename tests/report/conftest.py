"""Runs made up from cost models, for the report's tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from attnlab.run_folder import Run

_SPEC = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
synthetic = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(synthetic)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Run]:
    """A synthetic run in a folder of its own; the arguments are those of `synthetic.synthetic`."""
    count = 0

    def make(**options: object) -> Run:
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        folder.mkdir()
        return synthetic.synthetic(folder, **options)

    return make
