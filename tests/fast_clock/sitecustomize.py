"""Clocks that run five times too fast, in every Python process that finds this folder on its path.

    PYTHONPATH=tests/fast_clock pytest tests

shows that no test's outcome depends on how much fits into a time: deadlines and budgets pass five times as soon.
"""

import time
from collections.abc import Callable

_TIMES = 5


def _fast(clock: Callable[[], float]) -> Callable[[], float]:
    began = clock()

    def fast() -> float:
        return began + _TIMES * (clock() - began)

    # whoever asks a clock for its name finds it where the clock was
    fast.__name__ = fast.__qualname__ = clock.__name__
    fast.__module__ = "time"
    return fast


for _name in ("monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns"):
    setattr(time, _name, _fast(getattr(time, _name)))
