"""How fast a machine is, and who else uses it, must not decide whether a test passes: no deadlines, one thread."""

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

# Threads that wait for each other on shared cores wait for seconds. PyTorch and the processes that tests start
# read the variable; NumPy's pool may be there already. A test that is about threads sets them itself
os.environ.setdefault("OMP_NUM_THREADS", "1")
# nothing is remembered from test to test, nor from what the user has measured
os.environ["ATTNLAB_CACHE"] = os.devnull
threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))

settings.register_profile(
    "attnlab", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attnlab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest begin first, so that no process of several is left with one at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_judging.py", "test_types.py", "test_pages.py"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """Makes a synthetic run in a folder of its own, a small one by default, by the arguments of `synthetic`."""
    from synthetic import synthetic  # pandas and the laboratory come with it

    def make(**options: Any) -> Any:
        place = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        return synthetic(place, **{"lengths": (64, 256, 1024), "heads": (1, 4), **options})

    return make


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """A test leaves PyTorch the threads that it found; a command that ends its process leaves garbage to the system."""
    before = torch.get_num_threads()
    yield
    gc.unfreeze()
    assert torch.get_num_threads() == before, "a test left PyTorch with other threads"
