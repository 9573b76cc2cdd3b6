"""A call in a child process gives its answer, or a reason in one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from attnlab.processes import Failed, Interpreter, Process, decode, encode
from tests.race.called import Asked, Told

_HOME = "tests.race.called"
_HERE = Interpreter(paths=(str(Path(__file__).parents[2]),))


def test_only_plain_data_and_arrays_travel() -> None:
    """Objects within arrays and functions are refused."""
    with pytest.raises(TypeError):
        encode(np.array([object()]))
    with pytest.raises(TypeError):
        encode(os.system)
    (array,) = decode(encode([np.float32([1, 2])]))
    array[0] = 5  # the receiver may write to it


def test_a_process_is_asked_again_and_again() -> None:
    """Arrays and dataclasses go in both directions. A failure has a reason in one line, and the process continues."""
    one = Process(f"{_HOME}:counting", interpreter=_HERE)
    assert [one.ask("add", seconds=60, number=2) for _ in range(2)] == [2, 4]
    asked = Asked(np.arange(6, dtype=np.float16).reshape(2, 3), ("one", "three"))
    found = one.ask("doubled", seconds=60, answer=Told, asked=asked)
    assert isinstance(found, Told) and found.named == {"one": 3, "three": 5}
    assert found.numbers.dtype == np.float16 and np.array_equal(found.numbers, 2 * asked.numbers)
    for how, kind, said in (
        ("raises", "raised", "raised ValueError: no such thing"),
        ("declines", "declined", "not for odd numbers"),
        ("odd", "raised", "raised TypeError: object is not sent to other processes"),
    ):
        with pytest.raises(Failed) as fault:
            one.ask("fail", seconds=60, how=how)
        assert (fault.value.kind, str(fault.value)) == (kind, said)
    one.stop()
    one.go_on()
    assert one.ask("add", seconds=60, number=1) == 5
    with pytest.raises(Failed) as fault:
        one.ask("fail", seconds=60, how="crashes")
    assert fault.value.kind == "crashed" and "SIGSEGV" in str(fault.value) and not one.alive
    with pytest.raises(Failed, match="has ended before"):
        one.ask("add", seconds=60, number=1)


def test_a_process_that_hangs_or_sends_garbage_is_ended() -> None:
    """If no answer comes in time, the reason names the request."""
    one, other = (Process(f"{_HOME}:counting", interpreter=_HERE) for _ in range(2))
    assert other.ask("add", seconds=60, number=1) == 1
    with pytest.raises(Failed, match="no answer in time to fail") as fault:
        one.ask("fail", seconds=0.1, how="hangs")
    assert fault.value.kind == "timed_out" and one.ended() is not None
    with pytest.raises(Failed, match="a message that is none"):
        other.ask("garble", seconds=60)
    assert not other.alive
    third = Process(f"{_HOME}:counting", interpreter=_HERE)
    third.stop()
    with pytest.raises(Failed, match="no answer in time"):
        third.ask("add", seconds=0.1, number=np.zeros(2**22))
    assert not third.alive
