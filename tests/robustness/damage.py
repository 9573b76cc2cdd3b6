"""Bytes of a stored run that are changed at random."""

from __future__ import annotations

import random
import re

#: what is put in the place of values
_PIECES = [b"null", b"{}", b"[]", b"1e999", b"-1", b"\xff\xfe", b"\x00", b'"', b"NaN", b"true", b"\n", b","]
_PIECES += [b"[" * 5000, b"9" * 5000, b'{"a":' * 3000, b"x" * 10_000, b"../../../etc/passwd", b"<script>"]
_VALUE = re.compile(rb"-?\d+\.?\d*|\"[^\"]*\"|true|false|null|$")


def damaged(generator: random.Random, data: bytes) -> bytes:
    """`data` with one to four changes: bits, cuts, doubled parts, other pieces anywhere and in the place of values."""
    for _ in range(generator.randint(1, 4)):
        start = generator.randrange(len(data) + 1)
        end = min(len(data), start + generator.randint(0, 40))
        part, piece = data[start:end], generator.choice(_PIECES)
        value = _VALUE.search(data, generator.randrange(len(data) + 1)) or re.match(b"", data)
        assert value is not None
        flipped = bytes(one ^ 1 << generator.randrange(8) for one in part[:1])
        changes = [
            data[:start] + flipped + data[start + len(flipped) :],
            data[:start] + data[end:],
            data[:start],
            data[:start] + part * generator.randint(1, 50) + data[start:],
            data[:start] + piece + data[end:],
            data[: value.start()] + piece + data[value.end() :],
        ]
        data = generator.choice(changes)
    return data
