"""Free memory is the least of what the machine and each control group leave; a worker gets no more than that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from attnlab import system as memory
from attnlab.libraries.library import open_library


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1000 bytes available. Its control groups are folders in `tmp_path`."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    monkeypatch.setattr(memory, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    return tmp_path


def group(folder: Path, **files: object) -> None:
    """Make a control group with these files; the first underscore in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(str(text))


@pytest.mark.parametrize(
    ("inner", "outer", "free"),
    [
        (("max", 900), ("max", 900), 1000), ((500, 100), (900, 100), 400), ((500, 100), (200, 150), 50),
        (("max", 5), (300, 350), 0),
    ],
)  # fmt: skip
def test_every_limit_around_this_process_counts(machine, inner, outer, free) -> None:
    """The groups are nested; the one that leaves the least memory decides."""
    (machine / "membership").write_text("0::/slice/job\n")
    for folder, (limit, used) in {"slice/job": inner, "slice": outer}.items():
        group(machine / "groups" / folder, memory_max=limit, memory_current=used)
    assert memory.free_bytes() == free == open_library("numpy").free_bytes()


def test_a_container_that_shows_its_group_as_the_root_is_limited(machine: Path) -> None:
    """In a container, the group of the process may have no folder of its name."""
    (machine / "membership").write_text("0::/docker/1234\n")
    group(machine / "groups", memory_max=300, memory_current=250, memory_stat="inactive_file 40\nanon 200\n")
    assert memory.free_bytes() == 90, "files that can be dropped are free"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts private memory on Linux alone")
def test_a_confined_process_is_refused_what_the_machine_does_not_have() -> None:
    """The refusal comes at allocation, before the memory is used. With CUDA there is no such limit."""
    taking = "from attnlab import system; import numpy as np; system.confine(); {}"
    for many in ("np.empty(2**46)", "held = [np.empty(2**28, np.uint8) for _ in range(2**12)]"):
        tried = subprocess.run([sys.executable, "-c", taking.format(many)], capture_output=True, text=True)
        assert "MemoryError" in tried.stderr
    lifted = "system.confine('cuda'); import resource as r; assert len({*r.getrlimit(r.RLIMIT_DATA)}) == 1"
    assert subprocess.run([sys.executable, "-c", taking.format(lifted)]).returncode == 0
