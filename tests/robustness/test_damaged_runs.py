"""A stored run with changed bytes gives no traceback, and its undamaged results are read."""

from __future__ import annotations

import random
import re
from pathlib import Path

from synthetic import synthetic

from attnlab.report import report_texts
from attnlab.report.frames import Frames
from attnlab.runs.store import RESULTS, RUN_FILE, read_run

#: bytes that are written in place of values
_PIECES = [b"null", b"{}", b"[]", b"1e999", b"-1", b"\xff\xfe", b"\x00", b'"', b"NaN", b"true", b"\n", b","]
_PIECES += [b"[" * 5000, b"9" * 5000, b'{"a":' * 3000, b"x" * 10_000, b"../../../etc/passwd", b"<script>"]
_VALUE = re.compile(rb"-?\d+\.?\d*|\"[^\"]*\"|true|false|null|$")


def damaged(generator: random.Random, data: bytes) -> bytes:
    """`data` with one to four changes: bits, cuts, repeated parts, other pieces anywhere or in place of values."""
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


def test_changed_bytes_are_told_and_hide_nothing_whole(tmp_path: Path) -> None:
    """A changed digit cannot be detected. A damaged run file may be refused, with its path."""
    some = ("torch_eager", "torch_eager#2", "torch_sdpa", "torch_sdpa_cudnn")
    run = synthetic(tmp_path, contenders=some, lengths=(64, 128), heads=(1,), rounds=10)
    run.save()
    good, told = {name: (tmp_path / name).read_bytes() for name in (RUN_FILE, RESULTS)}, set()
    for generator in map(random.Random, range(24)):
        name = generator.choice([RESULTS, RESULTS, RUN_FILE])
        data = damaged(generator, good[name])
        (tmp_path / name).write_bytes(data)
        try:
            found = read_run(tmp_path)
            report_texts(Frames(found))
            there = set(map(repr, found.results))
            for line, result in zip(good[RESULTS].splitlines(), run.results, strict=True):
                whole = name == RUN_FILE or data.split(b"\n").count(line) == 1
                assert not whole or result.contender in repr(there), "a result is lost"
            told.add("read")
        except ValueError as fault:
            assert name == RUN_FILE and str(tmp_path / RUN_FILE) in str(fault), fault
            told.add("refused")
        (tmp_path / name).write_bytes(good[name])
    assert told == {"read", "refused"}
