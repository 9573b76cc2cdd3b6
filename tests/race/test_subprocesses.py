"""Work in further processes: what is told there is told here, how it ends is told, and no process is left behind."""

from __future__ import annotations

import operator
import socket
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from attnlab.subprocesses import Aside, Broken, Channel, Closed, Garbled, Late, work_side_by_side

#: the work: calls a part with what tells, so that a part is what is done in it; mypy cannot say of what parts
CALL: Any = operator.call


def told_until(done: Callable[[], bool]) -> Callable[[Callable[[Any], None]], None]:
    """A part that tells "here" until `done`."""

    def part(tell: Callable[[Any], None]) -> None:
        until = time.monotonic() + 600
        while not done():
            tell("here")
            time.sleep(0.001)
            assert time.monotonic() < until

    return part


def test_a_process_that_raises_is_an_error_that_says_so() -> None:
    """Nothing takes over what it was to do. `int` cannot be called with what a part is given."""
    with pytest.raises(Broken, match=r"raised:\n(.*\n)*TypeError"):
        work_side_by_side(CALL, [told_until(lambda: False), int], lambda message: None)
    assert psutil.Process().children() == []


def test_nothing_is_left_of_work_aside_that_nobody_asks_for() -> None:
    """As where the caller fails meanwhile: it ends with what stands for it."""
    aside = Aside(time.sleep, 60)
    (one,) = psutil.Process().children()
    del aside
    assert not one.is_running()


def test_a_message_that_is_none_is_told_and_one_that_does_not_come_is_late() -> None:
    """Whatever the other side writes: half a message, one of a claimed length, bytes that mean nothing; or nothing."""
    for written, closes, fault in (
        (b"", True, Closed),
        (b"", False, Late),
        ((9).to_bytes(8, "big") + b"half", False, Late),
        ((2**60).to_bytes(8, "big"), False, Garbled),
        ((4).to_bytes(8, "big") + b"what", False, Garbled),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(written)
            if closes:
                theirs.close()
            with pytest.raises(fault):
                Channel(ours).receive(time.monotonic() + (0.05 if fault is Late else 60))
