"""What the tests of `attnlab.processes` call in a child process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.processes import Channel, serve


@dataclass(frozen=True)
class Asked:
    """What `doubled` takes."""

    numbers: NDArray[Any]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """What `doubled` returns."""

    numbers: NDArray[Any]
    named: dict[str, int]


def fails(how: str) -> Any:
    """Fail in the way that is named."""
    if how == "raises":
        raise ValueError("no\nsuch thing")
    if how == "declines":
        raise Declined("not for odd numbers")
    if how == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hangs":
        time.sleep(3600)
    return object()


class Counter:
    """An object that is called repeatedly."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def doubled(self, asked: Asked) -> Told:
        """Twice the numbers, and the length of each name."""
        return Told(2 * asked.numbers, {name: len(name) for name in asked.names})

    def fail(self, how: str) -> Any:
        print("the last words")
        return fails(how)

    def garble(self) -> None:
        self.channel.socket.sendall(b"\x00" * 7 + b"\x03\xff\xff\xff")


def counting(channel: Channel) -> None:
    """Serve a counter."""
    counter = Counter()
    counter.channel = channel  # type: ignore[attr-defined]
    serve(channel, counter)
