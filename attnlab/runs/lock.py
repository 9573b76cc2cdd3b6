"""One writer to a folder, and one measurement on a host: each held until its holder ends, however that ends."""

from __future__ import annotations

import contextlib
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
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold `folder`; nobody else can meanwhile. A holder that is killed lets go.

    wait : until it is free. Raises ValueError where another process holds it, or where the folder cannot be written to.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=-1 if wait else 0)
    try:
        lock.acquire(poll_interval=_LOOKS)
    except Timeout:
        raise ValueError(
            f"another run is writing to {folder}; wait until it has ended, or give another folder with --out"
        ) from None
    except OSError as fault:
        raise ValueError(f"the output folder {folder} cannot be written to: {fault.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # who waits for it looks whether it is still there
            (folder / LOCK).unlink()
        lock.release()


def host_lock() -> Path:
    """The file whose holder alone measures on this host: in the system's temporary folder, named after the host."""
    name = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node()) or "host"
    return Path(tempfile.gettempdir()) / f"attnlab-{name}.lock"


@contextlib.contextmanager
def host_held(*, wait: bool = True) -> Iterator[int]:
    """Hold this host: two who measure on it would slow each other. Yields a file descriptor.

    A process that inherits the descriptor goes on holding the host when its parent has been killed. The file stays
    where it is: with a new file of the same name there would be two locks. wait : until the host is free.
    Raises ValueError where it is not to wait and another process holds the host, or where the file cannot be opened.
    """
    import fcntl  # which only POSIX has

    handle = _opened(host_lock())
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    raise ValueError(
                        f"another process measures on this host: it holds {host_lock()}"
                    ) from None
                time.sleep(_LOOKS)
        yield handle
    finally:
        os.close(handle)


def _opened(file: Path) -> int:
    """Open to be locked, by whoever made it: to read is enough, and of another user's file all that is allowed."""
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, os.O_RDONLY)
        return os.open(file, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as fault:
        raise ValueError(f"the lock of this host, {file}, cannot be opened: {fault.strerror}") from None
