"""``results.jsonl``: a line a result, whole workloads appended in one write and flushed to the disk before it returns.

A crash may cut off the end: the last line, or the last workload, of whose contenders some have no line yet. Readers
pass over a line that is cut off and tell it; before a run is gone on with, what does not make a whole workload is set
aside into ``results.torn``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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
    data = "".join(one.to_json() + "\n" for one in results).encode()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(handle).st_size
            try:
                _write(handle, data)
                os.fsync(handle)
            except BaseException:  # an interrupt too: half a workload is worth nothing
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
        if not before:
            flush_folder(folder)
    except OSError as fault:
        raise NotStored(f"{file} cannot be written: {fault.strerror}; what it holds stays") from None


def read(folder: Path) -> Stored:
    """All results of `folder`. Raises ValueError, naming the line, for a whole line that is no result."""
    file = folder / RESULTS
    results: list[Result] = []
    ends: list[int] = []
    at = 0
    for number, line in enumerate(_lines(file), start=1):
        if not line.endswith(b"\n"):
            return Stored(tuple(results), tuple(ends), torn=True)
        try:
            results.append(Result.from_json(line.decode()))
        except ValueError as fault:
            raise ValueError(f"{file}, line {number}: {fault}") from None
        at += len(line)
        ends.append(at)
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
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as handle:
            number = 0
            while line := handle.readline(_MOST_BYTES):
                number += 1
                if len(line) == _MOST_BYTES:
                    raise ValueError(
                        f"{file}, line {number}: longer than {_MOST_BYTES:,} bytes, which no result is"
                    )
                yield line
    except FileNotFoundError:
        return


def _write(handle: int, data: bytes) -> None:
    """All of `data`, mostly in one call."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
