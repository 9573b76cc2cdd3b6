"""Work in further processes: what is told there is told here, how it ends is told, and no process is left behind."""

from __future__ import annotations

import operator
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnlab.subprocesses import (
    Aside,
    Broken,
    Channel,
    Closed,
    Garbled,
    Interpreter,
    Late,
    Siblings,
    work_side_by_side,
)
from attnlab.system import adopting

#: the work: calls a part with what tells, so that a part is what is done in it; mypy cannot say of what parts
CALL: Any = operator.call
SLOW_TO_WAIT = """
import os, time
waitpid = os.waitpid
os.waitpid = lambda *given: time.sleep(0.2) or waitpid(*given)
"""


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


def test_nothing_is_left_of_a_parent_that_forks_and_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those between it and the processes that it forks have ended, and it waits for them late."""
    (tmp_path / "slow_to_wait.py").write_text(SLOW_TO_WAIT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with adopting(), (tmp_path / "log").open("wb") as log:
        (one,) = Siblings("builtins:print", ["slow_to_wait"], [log], os.environ).born(time.monotonic() + 60)
    assert one is not None
    one.end()
    assert psutil.Process().children() == []


def test_who_would_import_another_module_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has imported one of that name already; who finds none there is forked."""
    for folder in ("installed", "own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ("theirs.py" if folder == "other" else "mine.py")).touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    sides = [Interpreter(own=(str(tmp_path / folder),)) for folder in ("own", "other")]
    with adopting(), (tmp_path / "log").open("wb") as log:
        born = Siblings("builtins:print", ["mine"], [log, log], os.environ, sides).born(time.monotonic() + 60)
    assert [isinstance(one, str) for one in born] == [True, False], born
    assert str(tmp_path / "own" / "mine.py") in str(born[0])
    for one in born:
        if not isinstance(one, str):
            one.end()
    assert psutil.Process().children() == []


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
