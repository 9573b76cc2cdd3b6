"""One writer to a folder, and one measurement on a host: each held until its holder ends, however that ends."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOCK = "run.lock"
#: who waits for a lock looks at it so often, in seconds: seldom, because somebody measures meanwhile
_LOOKS = 1.0


@contextlib.contextmanager
def locked(file: Path, *, busy: str, seconds: float = 0.0) -> Iterator[int]:
    """Hold `file`, which is made where there is none; yields its descriptor. A holder that is killed lets go.

    A process that inherits the descriptor goes on holding the file when its parent has been killed.
    Raises ValueError where the file cannot be opened, and, with `busy`, where another process still holds it after
    `seconds`.
    """
    import fcntl  # which only POSIX has

    until = time.monotonic() + seconds
    while True:
        try:
            handle = _opened(file)
        except OSError as fault:
            raise ValueError(f"the lock {file} cannot be opened: {fault.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() >= until:
                raise ValueError(busy) from None
            time.sleep(_LOOKS)
            continue
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # who held it has removed it: the next file of that name is another one
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold `folder`; nobody else can meanwhile.

    wait : until it is free. Raises ValueError where another process holds it, or where the folder cannot be written to.
    """
    busy = f"another run is writing to {folder}; wait until it has ended, or give another folder with --out"
    with locked(folder / LOCK, busy=busy, seconds=math.inf if wait else 0.0):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()


def is_held(folder: Path) -> bool:
    """Whether a process holds `folder`, on any host."""
    if not (folder / LOCK).exists():
        return False
    try:
        with held(folder):
            return False
    except ValueError:
        return True


@contextlib.contextmanager
def host_held(*, wait: bool = True) -> Iterator[int]:
    """Hold this host: two who measure on it would slow each other. Yields a descriptor, as `locked`.

    What is held is a file in the system's temporary folder, named after the host; it stays where it is. wait : until
    the host is free. Raises ValueError as `locked`.
    """
    name = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
    file = Path(tempfile.gettempdir()) / f"attnlab-{name}.lock"
    busy = f"another process measures on this host: it holds {file}"
    with locked(file, busy=busy, seconds=math.inf if wait else 0.0) as handle:
        yield handle


def _opened(file: Path) -> int:
    """Open to be locked, by whoever made it: to read is enough, and of another user's file all that is allowed."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        raise
