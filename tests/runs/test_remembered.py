"""What the machine can do at most is remembered, said to be, and asked again where that matters."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from attnlab import environment
from attnlab.environment import Remembered
from attnlab.processes import Failed
from attnlab.race import ceilings
from attnlab.race.instruments import Watch
from attnlab.workload.result import Ceiling

FOUND = {"matmul_flops": 1.0, "copy_bytes": 1.0}


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What measures instead of a process: each time another rate. Nobody else is on the machine."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceilings, "products", lambda: {"numpy": operator.matmul, "torch": operator.matmul})
    monkeypatch.setattr(Watch, "others", lambda self: 0.0)
    rates = map(float, itertools.count(1))
    worker = Mock(side_effect=lambda *_, **__: {**FOUND, "matmul_flops": next(rates)})
    monkeypatch.setattr(ceilings, "call", worker)
    return worker


def ceiling(*, afresh: bool = False) -> Ceiling:
    found = ceilings.measure_ceiling("cpu", "float32", Remembered(afresh=afresh))
    assert found is not None
    return found


def damaged(folder: Path, old: str, new: str) -> None:
    file = folder / "cache" / "remembered.json"
    file.write_text(file.read_text().replace(old, new), errors="surrogateescape")


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], Any]] = {
    "version": lambda patch, folder: (folder / "x-2.dist-info").mkdir() or patch.syspath_prepend(folder),
    "boot": lambda patch, folder: patch.setattr(environment, "_BOOT", folder / "cache" / "remembered.json"),
    "setting": lambda patch, folder: patch.setenv("OPENBLAS_CORETYPE", "another than here"),
    "a month later": lambda patch, folder: patch.setattr(environment, "_LONGEST", timedelta(0)),
    "too deep": lambda patch, folder: damaged(folder, "{", "[" * 100_000),
    "another field": lambda patch, folder: damaged(folder, "matmul_flops", "x"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_remembered_until_something_is_another(
    worker: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]
) -> None:
    """A damaged file is no trouble, and is mended."""
    first, second, afresh, last = ceiling(), ceiling(), ceiling(afresh=True), ceiling()
    for found, then in ((first, second), (afresh, last)):
        assert found.remembered is None and then.remembered
        assert then == replace(found, remembered=then.remembered)
    change(monkeypatch, tmp_path)
    assert ceiling().matmul_flops > last.matmul_flops > first.matmul_flops


def test_what_others_or_a_fault_may_have_lowered_is_not_kept(
    worker: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.side_effect = [FOUND, Failed("timed_out", "no answer"), FOUND, FOUND, FOUND, FOUND]
    assert ceiling().remembered is None
    monkeypatch.setattr(Watch, "others", lambda self: 1.0)
    assert ceiling().remembered is None and ceiling().remembered is None
