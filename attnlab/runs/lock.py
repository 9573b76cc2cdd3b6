"""One writer to a folder, and one measurement on a host: each held until its holder ends, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
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
def locked(file: Path, flags: int, *, wait: float, fresh: bool = False) -> Iterator[int]:
    """Hold `file`, opened with `flags` of `os.open`; yields its descriptor. A holder that is killed lets go.

    wait : so many seconds at most until it is free. fresh : it is removed at the end. Raises BlockingIOError where
    another process holds it for longer, another OSError where it cannot be opened.
    """
    patience = time.monotonic() + wait
    while True:
        handle = os.open(file, flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # its last holder did not remove it since it was opened
                break
            os.close(handle)
        except OSError as fault:
            os.close(handle)
            if not isinstance(fault, BlockingIOError) or time.monotonic() >= patience:
                raise
            time.sleep(_LOOKS)
    try:
        yield handle
    finally:
        if fresh:
            with contextlib.suppress(OSError):
                file.unlink()
        os.close(handle)


@contextlib.contextmanager
def held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold `folder`; nobody else can meanwhile.

    wait : until it is free. Raises ValueError where another process holds it, or where the folder cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(
                locked(folder / LOCK, os.O_RDWR | os.O_CREAT, wait=math.inf if wait else 0, fresh=True)
            )
        except BlockingIOError:
            raise ValueError(
                f"another run is writing to {folder}; wait until it has ended, or give another folder with --out"
            ) from None
        except OSError as fault:
            raise ValueError(f"the output folder {folder} cannot be written to: {fault.strerror}") from None
        yield


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
    file = host_lock()
    # made by whoever is first; to lock it, it is enough to read it, and of another user's file all that is allowed
    flags = os.O_RDONLY if file.exists() else os.O_RDONLY | os.O_CREAT
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(locked(file, flags, wait=math.inf if wait else 0))
        except BlockingIOError:
            raise ValueError(f"another process measures on this host: it holds {file}") from None
        except OSError as fault:
            raise ValueError(f"the lock of this host, {file}, cannot be opened: {fault.strerror}") from None
        yield handle
