"""One thread for a while: experiments ask several libraries in turn, whose idle thread pools would fight.

A pool that spins while it waits takes the processor from the library that is at work. On two cores the first
saturation experiment took 12 s with one thread and 47 s with two.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Every thread pool of this process with one thread, and as it was afterwards."""
    from threadpoolctl import threadpool_limits

    # imported first, so that its pool is there to be limited
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    before = torch.get_num_threads() if torch else 0
    with threadpool_limits(1):
        try:
            if torch:
                torch.set_num_threads(1)
            yield
        finally:
            if torch:
                torch.set_num_threads(before)
