"""What conductor and worker send each other: versioned frames of plain data over two pipes.

A frame is eight bytes of lengths (header, payload; big-endian), a JSON header, and a payload that
holds arrays one after the other as raw bytes, described in the header. A reply carries the number of the request that
it answers: a late or a second answer is not taken for another's. Nothing of any array library crosses, so the two
sides may run different interpreters and versions. Standard output is never used: libraries print there.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = 4
#: a header is a reason, a few names and shapes: one that claims to be longer is none
_MOST_HEADER = 2**24
_LENGTHS = struct.Struct(">II")
Message = dict[str, Any]


class Closed(Exception):
    """The other side is gone."""


class Garbled(Exception):
    """What came is no frame; the message says why."""


class Late(Exception):
    """No complete frame came before the deadline."""


def send(
    pipe: int, message: Message, arrays: tuple[NDArray[Any], ...] = (), deadline: float | None = None
) -> None:
    """Write one frame; `deadline` is a `time.monotonic` instant. Raises Closed or Late."""
    described = [{"dtype": str(array.dtype), "shape": array.shape} for array in arrays]
    header = json.dumps({**message, "arrays": described}).encode()
    payload = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    if len(payload) >= 2**32:
        raise ValueError(f"a frame holds less than 4 GiB of arrays, got {len(payload)} bytes")
    try:
        _write(pipe, _LENGTHS.pack(len(header), len(payload)) + header, deadline)
        _write(pipe, payload, deadline)
    except BrokenPipeError:
        raise Closed from None


def receive(pipe: int, deadline: float | None = None) -> tuple[Message, tuple[NDArray[Any], ...]]:
    """Read one frame; `deadline` is a `time.monotonic` instant. Raises Closed, Late or Garbled."""
    header_length, payload_length = _LENGTHS.unpack(_read(pipe, _LENGTHS.size, deadline))
    if header_length > _MOST_HEADER:
        raise Garbled(f"a header of {header_length} bytes, at most {_MOST_HEADER} are expected")
    message, described = _header(_read(pipe, header_length, deadline))
    expected = sum(dtype.itemsize * math.prod(shape) for dtype, shape in described)
    if expected != payload_length:
        raise Garbled(f"arrays of {expected} bytes are announced and {payload_length} bytes sent")
    payload = memoryview(_read(pipe, payload_length, deadline))
    arrays, start = [], 0
    for dtype, shape in described:
        length = dtype.itemsize * math.prod(shape)
        arrays.append(np.frombuffer(payload[start : start + length], dtype).reshape(shape))
        start += length
    return message, tuple(arrays)


def _header(data: bytes) -> tuple[Message, list[tuple[np.dtype[Any], tuple[int, ...]]]]:
    """The message, and dtype and shape of each array. Raises Garbled."""
    try:
        message = json.loads(data)
        described = [(np.dtype(one["dtype"]), tuple(one["shape"])) for one in message.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SyntaxError):
        raise Garbled(f"a header that is none: {data[:40]!r}") from None
    for dtype, shape in described:
        if dtype.hasobject or not all(type(size) is int and size >= 0 for size in shape):
            raise Garbled(f"an array of {dtype} and shape {shape} is announced")
    return message, described


def ready(pipe: int) -> bool:
    """Whether a frame has begun to come, or the other side is gone."""
    return _ready(pipe, select.POLLIN, 0)


def _write(pipe: int, data: bytes, deadline: float | None) -> None:
    view = memoryview(data)
    while view:
        _wait(pipe, select.POLLOUT, deadline)
        try:
            view = view[os.write(pipe, view) :]
        except BlockingIOError:
            continue


def _read(pipe: int, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        _wait(pipe, select.POLLIN, deadline)
        chunk = os.read(pipe, min(length - len(data), 1 << 20))
        if not chunk:
            raise Closed
        data += chunk
    return bytes(data)


def _ready(pipe: int, event: int, milliseconds: float | None) -> bool:
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(milliseconds))


def _wait(pipe: int, event: int, deadline: float | None) -> None:
    """Return when the pipe is ready for `event`. Raises Late at `deadline`."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    if not _ready(pipe, event, left):
        raise Late
