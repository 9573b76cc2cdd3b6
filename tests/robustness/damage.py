"""Stored runs whose bytes are changed at random: what is read of them, and what must be."""

from __future__ import annotations

import random
import re
from pathlib import Path

from synthetic import synthetic

from attnlab.report import Frames, report_texts, verdict_text
from attnlab.runs.store import RESULTS, RUN_FILE, read_run
from attnlab.workload.result import Invariance

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


class Stored:
    """A small run in `folder` with everything that one may hold."""

    def __init__(self, folder: Path) -> None:
        some = ("torch_eager", "torch_eager#2", "torch_sdpa", "torch_sdpa_cudnn")
        folder.mkdir(exist_ok=True)
        self.run = synthetic(folder, contenders=some, lengths=(64, 128), heads=(1,), rounds=10)
        self.run.invariance = [Invariance("torch_sdpa", "float32", 64, 64, {"again": True})]
        self.run.save()
        self.folder = folder
        self.good = {name: (folder / name).read_bytes() for name in (RUN_FILE, RESULTS)}

    def damage(self, generator: random.Random) -> str:
        """Damage one of its files, read what is left, and mend it: ``refused`` or ``read``.

        Raises whatever a reader does, and AssertionError where a whole line is lost.
        """
        name = generator.choice([RESULTS, RESULTS, RUN_FILE])
        data = damaged(generator, self.good[name])
        (self.folder / name).write_bytes(data)
        try:
            found = read_run(self.folder)
            report_texts(Frames(found))
            verdict_text(found)
            there = set(map(repr, found.results))
            for line, result in zip(self.good[RESULTS].splitlines(), self.run.results, strict=True):
                whole = name == RUN_FILE or data.split(b"\n").count(line) == 1
                assert not whole or result.contender in repr(there), "a result is lost"
            return "read"
        except ValueError as fault:
            assert name == RUN_FILE and str(self.folder / RUN_FILE) in str(fault), fault
            return "refused"
        finally:
            for one, good in self.good.items():
                (self.folder / one).write_bytes(good)
