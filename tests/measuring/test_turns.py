"""What a worker does in a turn: the calls that it makes, those that it times, and what it keeps between them."""

from __future__ import annotations

import gc
import platform
import statistics
from pathlib import Path
from typing import Any

import pytest

from attnlab.contract.backend import Backend
from attnlab.contract.workload import Workload
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.contender import parse_all
from attnlab.measuring.instruments import LATENCY
from attnlab.measuring.limits import Limits
from attnlab.measuring.worker import Worker

SMALL = Workload(heads=1, queries=4, keys=4, head_dim=4)


class Counting:
    """A backend's function that counts its calls, and fails from the `broken`-th on."""

    def __init__(self, broken: float = float("inf")) -> None:
        self.calls, self.broken = 0, broken

    def __call__(self, query: Any, key: Any, value: Any, *, causal: bool, scale: float) -> Any:
        self.calls += 1
        if self.calls >= self.broken:
            raise RuntimeError("broken")
        return query


def worker(attend: Counting) -> Worker:
    """A worker in this process, with `SMALL` prepared."""
    one = Worker()
    one.backend = Backend(
        name="counting", library="numpy", attend=attend, options=frozenset({"causal", "scale"})
    )
    assert one.prepare(SMALL.to_dict()) == ({"cache": "warm"}, ())
    return one


def test_a_turn_that_is_not_settled_makes_only_the_calls_it_times() -> None:
    attend = Counting()
    found, _ = worker(attend).measure(LATENCY.path, iterations=7, settle_seconds=None)
    assert attend.calls == 7
    assert found["samples"][0] > 0
    assert set(found["columns"]) == {"settled_s", "minor_faults", "involuntary_switches"}


def test_a_settled_turn_makes_at_least_one_call_before() -> None:
    """However short the settling, and however long the call."""
    attend = Counting()
    found, _ = worker(attend).measure(LATENCY.path, iterations=7, settle_seconds=0.0)
    assert attend.calls == 8
    assert found["columns"]["settled_s"][0] > 0


def test_a_turn_settles_for_the_seconds_it_is_given() -> None:
    """By the worker's clock, with many calls of a short one."""
    attend = Counting()
    found, _ = worker(attend).measure(LATENCY.path, iterations=1, settle_seconds=0.02)
    assert found["columns"]["settled_s"][0] >= 0.02
    assert attend.calls > 2


@pytest.mark.parametrize("broken", [float("inf"), 1, 2])
def test_no_garbage_is_collected_in_a_turn_and_it_is_again_afterwards(broken: float) -> None:
    """Also where the backend fails, while it settles or on the clock."""
    seen: list[bool] = []

    class Looking(Counting):
        def __call__(self, *arrays: Any, **options: Any) -> Any:
            seen.append(gc.isenabled())
            return super().__call__(*arrays, **options)

    one = worker(Looking(broken))
    assert gc.isenabled()
    try:
        one.measure(LATENCY.path, iterations=1, settle_seconds=0.0)
    except RuntimeError:
        assert broken < 3
    assert gc.isenabled()
    assert seen == [False] * min(2, int(min(broken, 2)))


def test_a_calibration_is_the_least_of_several_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of all starts a library up; one long call is enough."""
    one = worker(Counting())
    library = type(one._library())
    for told, calls, least in (
        ([0.09, 0.004, 0.002, 0.003, 0.005, 1e-9], 5, 0.002),
        ([5.0, 1e-9], 1, 5.0),
    ):
        waiting = iter(told)
        monkeypatch.setattr(library, "time_calls", lambda self, call, count, waiting=waiting: next(waiting))
        assert one.calibrate(warmup_seconds=0.0) == ({"seconds": least}, ())
        assert len(list(waiting)) == len(told) - calls


def test_a_calibration_calls_for_as_long_as_it_warms_up() -> None:
    """A short call many times."""
    attend = Counting()
    worker(attend).calibrate(warmup_seconds=0.02)
    assert attend.calls > 5


HUNGRY = """
import numpy as np

LIBRARY = "numpy"


def attend(query, key, value, *, causal, scale):
    spare = np.ones(8 * 2**20, np.uint8)
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap is told to be kept")
def test_a_freed_array_is_kept_for_the_next_call_unless_the_contender_says_otherwise(tmp_path: Path) -> None:
    """By the page faults of an 8 MiB array, 2048 pages of it: none a call, or all of them."""
    (tmp_path / "hungry.py").write_text(HUNGRY, encoding="utf-8")
    names = ["hungry", "hungry[MALLOC_MMAP_THRESHOLD_=65536]"]
    limits = Limits(min_rounds=6, max_rounds=6, turn_seconds=1e-4)
    with Conductor(parse_all(names), folders=[str(tmp_path)], limits=limits, memory=False) as conductor:
        faults = []
        for result in conductor.race(SMALL):
            assert result.latency is not None, result.reason
            columns = result.latency.columns
            faults.append(statistics.median(columns["minor_faults"]))
    kept, returned = faults
    assert kept < 100
    assert returned > kept
