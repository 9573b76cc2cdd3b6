"""Neighbours that take a core or the memory's bandwidth, started on purpose: how does the instrument bear them?"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

#: what each does, for so many seconds at most; it ends by itself where nobody ends it
_PROGRAMS = {
    "cpu": "while time.monotonic() < end: pass",
    "memory": ("one, two = bytearray(2**26), bytearray(2**26)\nwhile time.monotonic() < end: one[:] = two"),
}
HOGS = tuple(_PROGRAMS)


@contextlib.contextmanager
def hog(kind: str, seconds: float) -> Iterator[None]:
    """A neighbour of that kind ("cpu", "memory") in a process of its own, as long as the block lasts.

    "cpu" computes without a pause; "memory" copies 64 MiB to and fro. It ends after `seconds` in any case.
    """
    program = f"import time\nend = time.monotonic() + {seconds!r}\n{_PROGRAMS[kind]}"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()
