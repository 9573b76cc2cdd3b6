"""Messages that are none, large ones and many, and it reads none."""

import contextlib
import socket as sockets
import sys

socket = sockets.socket(fileno=int(sys.argv[1]))

for _ in range(10**5):
    with contextlib.suppress(OSError):
        socket.send(b"\xc1" * 60000, 64)


def attend(q, k, v, *, scale):
    return q * 0
