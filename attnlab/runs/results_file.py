"""``results.jsonl``: a line a result, whole workloads appended in one write and flushed to the disk before it returns.

A crash may cut off the end: the last line, or the last workload, of whose contenders some have no line yet. Readers
pass over a line that is cut off and tell it; before a run is gone on with, what does not make a whole workload is set
aside into ``results.torn``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.errors import NotStored
from attnlab.problem.result import Result

RESULTS, TORN = "results.jsonl", "results.torn"
#: bytes of a line; one of a thousand rounds has some 100 kB
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class Stored:
    """The results of a file, where each line ends (bytes from its start), and whether its last line was cut off."""

    results: tuple[Result, ...] = ()
    ends: tuple[int, ...] = ()
    torn: bool = False


def append(folder: Path, results: Sequence[Result]) -> None:
    """Write the results of one workload behind those that are there, on the disk before this returns.

    Raises NotStored where that fails; the file is then as it was before.
    """
    file = folder / RESULTS
    data = memoryview("".join(one.to_json() + "\n" for one in results).encode())
    try:
        with file.open("ab", buffering=0) as handle:
            before = handle.tell()
            try:
                while data:  # mostly once
                    data = data[handle.write(data) :]
                os.fsync(handle.fileno())
            except BaseException:  # an interrupt too: half a workload is worth nothing
                handle.truncate(before)
                raise
        if not before:
            flush_folder(folder)
    except OSError as fault:
        raise NotStored(f"{file} cannot be written: {fault.strerror}; what it holds stays") from None


def read(folder: Path) -> Stored:
    """All results of `folder`. Raises ValueError, naming the line, for a whole line that is no result."""
    file = folder / RESULTS
    results: list[Result] = []
    ends: list[int] = []
    with file.open("rb") if file.exists() else io.BytesIO() as handle:
        while line := handle.readline(_MOST_BYTES):
            place = f"{file}, line {len(ends) + 1}"
            if len(line) == _MOST_BYTES:
                raise ValueError(f"{place}: longer than {_MOST_BYTES:,} bytes, which no result is")
            if not line.endswith(b"\n"):
                return Stored(tuple(results), tuple(ends), torn=True)
            try:
                results.append(Result.from_json(line.decode()))
            except ValueError as fault:
                raise ValueError(f"{place}: {fault}") from None
            ends.append(handle.tell())
    return Stored(tuple(results), tuple(ends))


def set_aside(folder: Path, found: Stored, keep: int) -> None:
    """Keep the first `keep` results; whatever follows them goes to the end of ``results.torn``.

    Raises NotStored where that cannot be written; nothing is lost then.
    """
    file = folder / RESULTS
    end = found.ends[keep - 1] if keep else 0
    try:
        with file.open("r+b") as handle:
            handle.seek(end)
            rest = handle.read()
            if not rest:
                return
            with (folder / TORN).open("ab") as aside:
                aside.write(rest if rest.endswith(b"\n") else rest + b"\n")
                aside.flush()
                os.fsync(aside.fileno())
            handle.truncate(end)
            handle.flush()
            os.fsync(handle.fileno())
        flush_folder(folder)
    except FileNotFoundError:
        return  # nothing was measured yet
    except OSError as fault:
        raise NotStored(f"{folder} cannot be written to: {fault.strerror}; nothing was changed") from None


def flush_folder(folder: Path) -> None:
    """Let the disk know which files there are: until then a file that is on it may have no name."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
