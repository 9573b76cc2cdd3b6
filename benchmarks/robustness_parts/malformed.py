"""Lines, files and frames that are damaged in every way, and what reads them."""

from __future__ import annotations

import json
import pickle
import random
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from attnlab.backends.contender import Contender
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.subprocesses import Channel, Closed, Garbled
from robustness_parts import REPOSITORY, Figures, say


def fuzz(lines: int) -> Figures:
    """Lines and frames that are damaged in every way; each is taken or refused in a line, at once."""
    generator, told = random.Random(1), Counter[str]()
    before, worst = psutil.Process().memory_info().rss, 0.0
    for read, good in _readers():
        for _ in range(lines // 6):
            started = time.monotonic()
            try:
                read(_damaged(generator, good))
                told["taken"] += 1
            except (ValueError, Garbled, Closed):
                told["refused"] += 1
            except Exception as fault:  # the figure that must be 0
                told[f"crash {type(fault).__name__}"] += 1
                say(f"fuzz: {type(fault).__name__}: {str(fault)[:200]}")
            worst = max(worst, time.monotonic() - started)
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    return {"told": dict(told), "longest_s": round(worst, 3), "grown_mib": round(grown, 1)}


def _readers() -> Iterator[tuple[Callable[[bytes], Any], bytes]]:
    """What reads data from outside, and something good for it to read."""
    workload = Workload(heads=2, queries=8, keys=8, head_dim=4, causal=True, window=(3, 0))
    reference = (REPOSITORY / "reports" / "reference" / "results.jsonl").read_bytes().splitlines()[0]
    run = (REPOSITORY / "reports" / "reference" / "run.json").read_bytes()
    plan = b'lengths = [64, 128]\nheads = [1, 4]\nbackends = ["torch_sdpa[threads=1]"]\nwindow = [3, 0]\n'
    message = pickle.dumps((1, "answer", {"seconds": 1.0, "results": np.zeros((2, 2), np.float32)}))
    frame = len(message).to_bytes(8, "big") + message
    yield lambda data: Result.from_json(data.decode(errors="replace")), reference
    yield lambda data: Workload.from_dict(_object(data)), json.dumps(workload.to_dict()).encode()
    yield _read_run, run
    yield _read_plan, plan
    yield (
        lambda data: Contender.parse(data.decode(errors="replace")),
        b"torch_sdpa[threads=1,OMP_PROC_BIND=true]",
    )
    yield _read_frame, frame


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode(errors="replace"))
    except RecursionError:  # this script's own reading, not attnlab's
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _read_run(data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as folder:
        (Path(folder) / "run.json").write_bytes(data)
        return read_run(folder)


def _read_plan(data: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as folder:
        file = Path(folder) / "plan.toml"
        file.write_bytes(data)
        return Plan.grid(**read_plan(file))


def _read_frame(data: bytes) -> Any:
    reading, writing = socket.socketpair()
    with reading:
        with writing:
            writing.sendall(data[:60_000])
        return Channel(reading).receive(time.monotonic() + 5)


_PIECES = [
    b"null",
    b"{}",
    b"[]",
    b"1e999",
    b"-1",
    b"\xff\xfe",
    b"\x00",
    b'"',
    b"NaN",
    b"[" * 5000,
    b"9" * 5000,
]
_PIECES += [
    b'{"a":' * 3000,
    "\u202e<script>".encode(),
    b"../../../etc/passwd",
    b"true",
    b"\n",
    b",",
    b"x" * 10_000,
]


def _damaged(generator: random.Random, good: bytes) -> bytes:
    """`good` with one to four changes: bits, cuts, doubled parts, other pieces in the place of values."""
    data = bytearray(good)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(data) + 1)
        until = min(len(data), at + generator.randint(0, 40))
        kind = generator.randrange(6)
        if kind == 0 and data:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del data[at:until]
        elif kind == 2:
            data[at:at] = data[at:until] * generator.randint(1, 50)
        elif kind == 3:
            data[at:until] = generator.choice(_PIECES)
        elif kind == 4:
            del data[at:]
        else:
            values = list(re.finditer(rb"-?\d+\.?\d*|\"[^\"]*\"|true|false|null", bytes(data)))
            if values:
                one = generator.choice(values)
                data[one.start() : one.end()] = generator.choice(_PIECES)
    return bytes(data)
