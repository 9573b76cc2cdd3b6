"""What libraries that compute on the host share: its clock and its free memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds_per_call(call: Callable[[], Any], iterations: int, finish: Callable[[], None]) -> float:
    """Seconds per call by the host's monotonic clock, with queued work finished on both sides."""
    finish()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    finish()
    return (time.perf_counter() - start) / iterations


def free_bytes() -> int:
    """Bytes of main memory that can still be taken, within this process's control group if it has one."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return free
    return max(free, 0)
