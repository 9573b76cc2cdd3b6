"""How fast a machine is, and who else uses it, must not decide whether a test passes: no deadlines, one thread."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

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


#: folders that make reports: charts, figures and pages are loaded once, in one process
_REPORTS = {"docs", "report"}


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in its own hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes one gets a file, and one all reports. What takes longest begins first."""
    for item in items:
        parts = item.path.relative_to(Path(__file__).parent).parts
        item.add_marker(pytest.mark.xdist_group("reports" if _REPORTS & {*parts} else "/".join(parts)))
    items.sort(key=lambda item: not {"test_judging.py", "test_types.py"} & {*item.path.parts})


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """A test leaves PyTorch the threads that it found; a command that ends its process leaves garbage to the system."""
    before = torch.get_num_threads()
    yield
    gc.unfreeze()
    assert torch.get_num_threads() == before, "a test left PyTorch with other threads"
