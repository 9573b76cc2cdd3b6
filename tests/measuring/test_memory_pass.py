"""The memory pass can be repeated for every workload of a run in one process."""

from __future__ import annotations

from pathlib import Path


def test_the_memory_pass_leaves_no_file_open() -> None:
    """It runs for every workload of a run, in the same process."""
    from attnlab.contract.library import NumPy
    from attnlab.measuring.memory import peak_bytes

    peak_bytes(NumPy(), list)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        peak_bytes(NumPy(), list)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
