"""A request to stop, however it comes, is an interrupt: what is measured is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and a terminal that is closed raise KeyboardInterrupt within, as Ctrl-C does.

    Only the main thread receives signals: elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    # who was told to ignore a signal (nohup) goes on ignoring it
    before = {one: handler for one, handler in handlers.items() if handler is not signal.SIG_IGN}
    try:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
