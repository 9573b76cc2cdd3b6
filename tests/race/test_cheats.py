"""Who does not compute on the clock what it was checked for gets no speed."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest

from attnlab.backends.contender import Contender
from attnlab.correctness.check import check
from attnlab.errors import Misbehaved
from attnlab.race.compare import compare
from attnlab.race.limits import Limits
from attnlab.race.worker import Worker
from attnlab.workload.workload import Workload

sys.path.append(str(Path(__file__).parents[1] / "robustness"))

import cheats

#: one for each way to be found, and those that are not found by being wrong
FEW = (
    "kept_by_address",
    "kept_by_content",
    "kept_by_version",
    "weights_kept_by_content",
    "in_its_first_calls",
    "in_every_second_call",
    "after_a_pause",
    "not_in_the_timing_loop",
    "in_a_thread",
    "when_it_is_read",
    "with_its_own_timing",
    "slow_where_it_is_checked",
)


def _race(folder: Path, names: list[str], library: str) -> None:
    contenders = cheats.write(folder, names, library)
    workload = cheats.workload_for(names[0])
    found = compare(*contenders, workload=workload, folders=[folder], limits=cheats.LIMITS)
    assert not cheats.gains(found.results), found.sentences()


@pytest.mark.parametrize("names", [FEW[::2], FEW[1::2]], ids=["some", "others"])
def test_who_does_not_compute_on_the_clock_gets_no_speed(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A dozen, beside an honest copy of what each was checked for."""
    _race(tmp_path, list(names), "torch")


@pytest.mark.thorough
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("names", list(cheats.groups(cheats.CHEATS)), ids=lambda names: names[0])
def test_no_cheat_gets_a_speed(tmp_path: Path, names: list[str], library: str) -> None:
    """All of them, on NumPy's arrays and on PyTorch's tensors."""
    _race(tmp_path, names, library)


def test_the_check_asks_the_timing_loop_too(tmp_path: Path) -> None:
    """What is right wherever it is asked, but not on the clock, fails there; and the honest one passes."""
    cheats.write(tmp_path, ["not_in_the_timing_loop"], "numpy")
    found = [
        check(name, [str(tmp_path)], dtypes=["float32"]) for name in ("not_in_the_timing_loop", cheats.HONEST)
    ]
    assert [one.passed for one in found] == [False, True], [one.reason for one in found]
    assert "in a race" in (found[0].reason or "")


def test_a_known_slow_down_is_measured() -> None:
    """Of a contender's first workload too, in a worker."""
    worker = Worker()
    worker.load(Contender.parse("numpy_vectorized[slowed=3]"), [])
    worker.prepare(Workload(heads=1, queries=4, keys=4, head_dim=4))
    assert worker.check(rows=[0])["answers"]


@pytest.mark.parametrize("name, watched", [("perf_counter", True), ("sleep", False)])
def test_who_replaces_a_clock_is_named_and_who_replaces_another_function_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str, watched: bool
) -> None:
    """Libraries replace functions for reasons of their own."""
    worker = Worker()
    worker.load(Contender("numpy_vectorized", "numpy_vectorized"), [])
    worker.prepare(Workload(heads=1, queries=4, keys=4, head_dim=4))
    monkeypatch.setattr(time, name, lambda *arguments: 0.0)
    with pytest.raises(Misbehaved, match=f"time.{name}") if watched else contextlib.nullcontext():
        worker.check(rows=[0])


@pytest.mark.parametrize(
    "name, number", [("processes", 2000), ("turn_seconds", float("nan")), ("min_rounds", 1.5)]
)
def test_limits_have_bounds(name: str, number: float) -> None:
    """A number that no race can have is refused, by name."""
    with pytest.raises(ValueError, match=f"{name} must be"):
        Limits(**{name: number})
