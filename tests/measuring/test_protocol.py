"""Frames carry plain data and arrays of any kind between two processes, and never block for ever."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnlab.race import protocol

PAST = 0.0  # long gone on the monotonic clock


class Pipe:
    """Both ends of a pipe, closed one by one."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.open = {self.reading, self.writing}

    def close(self, end: int) -> None:
        os.close(end)
        self.open.discard(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that is closed afterwards, whatever the test closed."""
    one = Pipe()
    yield one
    for end in list(one.open):
        one.close(end)


any_array = arrays.arrays(
    st.sampled_from(["float16", "float32", "float64", "int8", "uint16", "int64", "bool", "complex64", ">f4"]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text().filter(lambda key: key != "arrays"), plain, max_size=4),
    st.lists(any_array, max_size=3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_frame_arrives_as_it_was_sent(
    pipe: Pipe, message: dict[str, object], sent: list[np.ndarray]
) -> None:
    """Plain data equal; arrays equal in shape, dtype and bits, empty ones and scalars too."""
    protocol.send(pipe.writing, message, tuple(sent))
    received, got = protocol.receive(pipe.reading, time.monotonic() + 60)
    assert received == message
    assert [(one.dtype, one.shape, one.tobytes()) for one in got] == [
        (one.dtype, one.shape, one.tobytes()) for one in sent
    ]


def test_an_array_that_is_not_contiguous_arrives_in_its_own_order(pipe: Pipe) -> None:
    """A view with strides is no different from its copy."""
    view = np.arange(24.0).reshape(4, 6).T[::2]
    protocol.send(pipe.writing, {}, (view,))
    assert np.array_equal(protocol.receive(pipe.reading)[1][0], view)


def test_frames_keep_their_order(pipe: Pipe) -> None:
    """And their borders."""
    for number in range(5):
        protocol.send(pipe.writing, {"number": number}, (np.full(number, number),))
    for number in range(5):
        message, (array,) = protocol.receive(pipe.reading)
        assert message == {"number": number}
        assert array.tolist() == [number] * number


def test_large_arrays_pass_both_ways_at_once() -> None:
    """Many times what a pipe holds, with an end that does not block, as a worker's is: no deadlock."""
    there, back = Pipe(), Pipe()
    os.set_blocking(there.writing, False)
    large = np.arange(3 * 2**20, dtype=np.float32)

    def echo() -> None:
        message, got = protocol.receive(there.reading)
        protocol.send(back.writing, message, got)

    other = threading.Thread(target=echo)
    other.start()
    deadline = time.monotonic() + 60
    protocol.send(there.writing, {"large": True}, (large, large), deadline)
    message, got = protocol.receive(back.reading, deadline)
    other.join()
    assert message == {"large": True}
    assert all(np.array_equal(one, large) for one in got)
    for one in (there, back):
        for end in list(one.open):
            one.close(end)


def test_waiting_ends_at_the_deadline(pipe: Pipe) -> None:
    """With nothing sent, with half a frame sent, and with nobody reading."""
    with pytest.raises(protocol.Late):
        protocol.receive(pipe.reading, PAST)
    os.write(pipe.writing, b"\0\0\0")
    with pytest.raises(protocol.Late):
        protocol.receive(pipe.reading, PAST)
    os.set_blocking(pipe.writing, False)
    with pytest.raises(protocol.Late):
        protocol.send(pipe.writing, {}, (np.zeros(2**20),), PAST)
        protocol.send(pipe.writing, {}, (np.zeros(2**20),), PAST)


def test_the_end_of_the_other_side_is_noticed(pipe: Pipe) -> None:
    """To a reader, also in the middle of a frame, and to a writer."""
    os.write(pipe.writing, b"\0\0\0")
    pipe.close(pipe.writing)
    with pytest.raises(protocol.Closed):
        protocol.receive(pipe.reading, time.monotonic() + 60)
    other = Pipe()
    other.close(other.reading)
    with pytest.raises(protocol.Closed):
        protocol.send(other.writing, {"a": 1})
    other.close(other.writing)


def test_a_frame_that_begins_to_come_and_a_closed_pipe_are_noticed_without_waiting(pipe: Pipe) -> None:
    """What is there need not be waited for, nor what never comes."""
    assert not protocol.ready(pipe.reading)
    protocol.send(pipe.writing, {"op": "hello"})
    assert protocol.ready(pipe.reading)
    protocol.receive(pipe.reading)
    assert not protocol.ready(pipe.reading)
    pipe.close(pipe.writing)
    assert protocol.ready(pipe.reading)


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_bytes_that_are_no_frame_are_told_and_take_no_memory(header: bytes, payload: bytes) -> None:
    """Whatever stands in a header: a frame, or Garbled, at once."""
    pipe = Pipe()
    try:
        os.write(pipe.writing, len(header).to_bytes(4, "big") + len(payload).to_bytes(4, "big"))
        os.write(pipe.writing, header + payload)
        with contextlib.suppress(protocol.Garbled):
            protocol.receive(pipe.reading, time.monotonic() + 60)
    finally:
        for end in list(pipe.open):
            pipe.close(end)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b'{"arrays": 3}',
        b'{"arrays": [{"dtype": "O", "shape": [1]}]}',
        b'{"arrays": [{"dtype": "f4", "shape": [-1]}]}',
        b'{"arrays": [{"dtype": "f4", "shape": [1048576, 1048576]}]}',
        b'{"arrays": [{"dtype": "f4,(", "shape": []}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_header_that_is_none_is_garbled(pipe: Pipe, header: bytes) -> None:
    """Not JSON, no arrays, objects of Python, sizes that no machine has, nesting without end."""
    thread = threading.Thread(
        target=os.write, args=(pipe.writing, len(header).to_bytes(4, "big") + bytes(4) + header)
    )
    thread.start()
    with pytest.raises(protocol.Garbled):
        protocol.receive(pipe.reading, time.monotonic() + 60)
    thread.join()


def test_a_header_that_claims_gigabytes_is_not_waited_for(pipe: Pipe) -> None:
    """Its length alone tells."""
    os.write(pipe.writing, b"\xff" * 8)
    with pytest.raises(protocol.Garbled, match="a header of 4294967295 bytes"):
        protocol.receive(pipe.reading, time.monotonic() + 60)
