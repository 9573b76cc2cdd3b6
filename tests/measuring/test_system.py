"""What a system lacks is done otherwise or left out."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnlab import system

SLEEPS = "import subprocess, sys, time; sleep = 'import time; time.sleep(600)'; "
SLEEPS += "subprocess.Popen([sys.executable, '-S', '-c', sleep]); "
SLEEPS += "print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """A process with a child, in a group of their own."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SLEEPS], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        one = psutil.Process(process.pid)
        members = [one, *one.children(recursive=True)]
        yield members
        for member in members:
            if member.is_running():
                member.kill()


@pytest.fixture(params=["as it is", "no process groups", "no waitid"])
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Systems that lack something."""
    if request.param == "no process groups":  # Windows
        monkeypatch.delattr(os, "killpg")
        monkeypatch.delattr(os, "waitid")
    if request.param == "no waitid":  # macOS
        monkeypatch.delattr(os, "waitid")
    return str(request.param)


def states(family: list[psutil.Process]) -> set[str]:
    """Of those that have not ended."""
    return {one.status() for one in family if one.is_running()}


def test_a_worker_and_its_children_are_stopped_go_on_and_end(
    lacking: str, family: list[psutil.Process]
) -> None:
    """With process groups and without."""
    system.stop(family[0])
    assert family[0].status() == psutil.STATUS_STOPPED
    system.go_on(family[0])
    assert psutil.STATUS_STOPPED not in {family[0].status()}
    system.stop(family[0])
    system.kill(family[0])
    gone, _ = psutil.wait_procs(family[1:], timeout=30)
    assert family[0].status() == psutil.STATUS_ZOMBIE
    assert len(gone) == 1


def test_without_resource_figures_are_untold_and_limits_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    real = importlib.import_module

    def without(name: str) -> Any:
        if name in ("resource", "fcntl"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(system.importlib, "import_module", without)
    assert math.isnan(system.minor_faults()) and math.isnan(system.involuntary_switches())
    assert system.processor_seconds() > 0
    assert not system.limit_files() and not system.confine()
    system.widen(0, 4096)


def test_without_proc_nothing_is_confined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS: it is not known what the process holds."""
    monkeypatch.setattr(system, "_STATUS", tmp_path / "status")
    assert not system.confine()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts private memory on Linux alone")
def test_a_confined_process_is_refused_what_the_machine_does_not_have() -> None:
    """At once, before a page is touched; and a file that grows without end ends its writer."""
    taking = "from attnlab.race import system; import numpy as np; assert system.confine(); {}"
    tried = subprocess.run(
        [sys.executable, "-c", taking.format("np.empty(2**46)")], capture_output=True, text=True
    )
    assert "MemoryError" in tried.stderr
    many = "held = [np.empty(2**28, np.uint8) for _ in range(2**12)]"
    tried = subprocess.run([sys.executable, "-c", taking.format(many)], capture_output=True, text=True)
    assert "MemoryError" in tried.stderr
    lifted = taking.format("assert system.confine('cuda')")
    assert subprocess.run([sys.executable, "-c", lifted]).returncode == 0


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system has no limit on files")
def test_a_file_without_end_ends_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the disk."""
    writing = (
        "from attnlab.race import system; system._FILE_BYTES = 2**16; assert system.limit_files()\n"
        f"file = open({str(tmp_path / 'log')!r}, 'wb', buffering=0)\n"
        "while True: file.write(bytes(2**12))"
    )
    tried = subprocess.run([sys.executable, "-c", writing], capture_output=True, text=True)
    assert tried.returncode in (-signal.SIGXFSZ, 1) and tried.returncode != 0
    assert (tmp_path / "log").stat().st_size == 2**16
