"""To read and judge what was measured without Python's search for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection(*, last: bool = False) -> Iterator[None]:
    """As a context or around a function: nobody looks for objects that only refer to each other.

    last : the process ends after it, so that what is there by then is not looked through at all.

    A run goes when it is done with, as nothing in it refers back; to look through its millions of parts again and again
    takes a sixth of the time of a large one.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if last:
            gc.freeze()
        if enabled:
            gc.enable()
