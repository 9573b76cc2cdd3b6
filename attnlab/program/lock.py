"""One writer to a folder: a run holds it until it ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

LOCK = "run.lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder`; nobody else can meanwhile. A holder that is killed lets go.

    Raises ValueError where another process holds it, or where the folder cannot be written to.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
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
