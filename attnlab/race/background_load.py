"""Neighbours that take a core or the memory's bandwidth, started on purpose: how does the instrument bear them?"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

#: what each does, for so many seconds at most; it ends by itself where nobody ends it
_PROGRAMS = {
    "cpu": "while wanted(): sum(range(10_000))",
    "memory": "one, two = bytearray(2**26), bytearray(2**26)\nwhile wanted(): one[:] = two",
}
HOGS = tuple(_PROGRAMS)
#: it ends with who started it, also where that is killed
_START = """
import os, time
end, parent = time.monotonic() + {seconds!r}, os.getppid()
def wanted():
    return time.monotonic() < end and os.getppid() == parent
"""


@contextlib.contextmanager
def hog(kind: str, seconds: float) -> Iterator[None]:
    """A neighbour of that kind ("cpu", "memory") in a process of its own, as long as the block lasts.

    "cpu" computes without a pause; "memory" copies 64 MiB to and fro. It ends after `seconds` in any case,
    and with who started it.
    """
    program = _START.format(seconds=seconds) + _PROGRAMS[kind]
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()
