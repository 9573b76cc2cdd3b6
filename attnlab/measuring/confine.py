"""A cap on what this process may take, so that a wrong prediction ends a worker and not the machine.

The system counts private writable memory (Linux: RLIMIT_DATA, since 4.7) and refuses what goes beyond: an array library
raises then, and what cannot raise aborts. Without it a process that took 40 GiB on a machine of 23 stalled everything
for a minute, until the kernel killed something.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from attnlab.contract.memory import free_bytes

#: of what is free, this part may be taken
_SHARE = 0.9
_STATUS = Path("/proc/self/status")


def confine(device: str = "cpu") -> bool:
    """Let this process take no more than what is free now, beyond what it holds; whether that could be done.

    A process that computes on a GPU maps far more than it takes, and is not confined.
    """
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        held = _held_bytes()
    except (ImportError, AttributeError, OSError):
        return False  # no such limit here: the prediction alone stands between a worker and the machine
    if held is None:
        return False
    cap = resource.RLIM_INFINITY if device != "cpu" else held + int(_SHARE * free_bytes())
    if most != resource.RLIM_INFINITY:
        cap = most if cap == resource.RLIM_INFINITY else min(cap, most)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (cap, most))
        return True
    return False


def _held_bytes() -> int | None:
    """Private writable memory of this process, as the limit counts it."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmData"):
            return int(line.split()[1]) * 1024
    return None
