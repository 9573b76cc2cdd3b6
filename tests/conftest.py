"""The speed and the load of the machine must not decide whether a test passes: no deadlines, one thread."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# On shared cores, threads that wait for each other may wait for seconds. PyTorch and the processes that tests start
# read the variable; NumPy's pool may exist already, so it is limited below. A test about threads sets them itself
os.environ.setdefault("OMP_NUM_THREADS", "1")
# no cache: nothing is kept between tests or read from the user's measurements
os.environ["ATTNLAB_CACHE"] = os.devnull
threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))

settings.register_profile(
    "attnlab", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attnlab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slowest files first, so that parallel test processes end at about the same time."""
    items.sort(key=lambda item: item.path.name not in ("test_judging.py", "test_types.py", "test_pages.py"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for one test."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """A function that makes a synthetic run in a new folder, small by default, from the arguments of `synthetic`."""
    from synthetic import synthetic  # it imports pandas and attnlab.lab

    def make(**options: Any) -> Any:
        place = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        return synthetic(place, **{"lengths": (64, 256, 1024), "heads": (1, 4), **options})

    return make


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """A test must leave PyTorch's number of threads as it was. If it froze garbage collection, that is undone."""
    before = torch.get_num_threads()
    yield
    gc.unfreeze()
    assert torch.get_num_threads() == before, "a test left PyTorch with other threads"
