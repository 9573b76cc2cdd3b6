"""A request to stop, however it comes, is an interrupt: what is measured is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and a terminal that is closed raise KeyboardInterrupt within, as Ctrl-C does.

    Only the main thread receives signals: elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # who was told to ignore a signal (nohup) goes on ignoring it
    before = {one: signal.getsignal(one) for one in wanted if signal.getsignal(one) is not signal.SIG_IGN}
    try:
        for one in before:
            signal.signal(one, interrupt)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
