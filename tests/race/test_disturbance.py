"""What a system tells of others on its cores, and what it hides: read from files made up for the purpose."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fake_workers import Clock

from attnlab import system
from attnlab.race.disturbance import Others, Watch

RUN_DELAY = "run delay of threads (no schedstat)"
PRESSURE = "pressure of tasks on the cores (no /proc/pressure)"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this process's threads: none so far."""
    place = tmp_path / "task"
    place.mkdir()
    monkeypatch.setattr(system, "_TASKS", place)
    return place


@pytest.fixture
def pressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the cores' pressure, which is not there yet."""
    place = tmp_path / "cpu"
    monkeypatch.setattr(system, "_PRESSURE", place)
    return place


def thread(tasks: Path, number: int, schedstat: str | None) -> None:
    """A thread that tells this of itself."""
    (tasks / str(number)).mkdir()
    if schedstat is not None:
        (tasks / str(number) / "schedstat").write_text(schedstat, encoding="ascii")


def test_the_run_delay_is_summed_over_all_threads(tasks: Path) -> None:
    """The second figure of each, in nanoseconds: what a team waits for its last member stands with that member."""
    thread(tasks, 1, "5000000 1500000000 30\n")
    thread(tasks, 2, "7 250000000 1\n")
    assert system.run_delay_seconds() == pytest.approx(1.75)


def test_what_a_system_hides_is_named(tasks: Path, pressure: Path) -> None:
    """Each by itself: such a disturbance goes unseen."""
    assert system.hidden() == [RUN_DELAY, PRESSURE]
    thread(tasks, 1, "1 0 1\n")
    assert system.hidden() == [PRESSURE]
    pressure.write_text("some avg10=0.00 total=0\n", encoding="ascii")
    assert system.hidden() == []


# -- who the others are ----------------------------------------------------------------------------------

Times = namedtuple("Times", ["user", "system", "idle", "iowait", "steal"])


class Machine:
    """A machine whose cores and processes have taken what is set: by (number, parent, name) CPU seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.busy, self.processes = 0.0, dict[tuple[int, int, str], float | None]()
        self.born: dict[int, float] = {}
        monkeypatch.setattr(time, "monotonic", self.clock.monotonic)
        monkeypatch.setattr(psutil, "cpu_times", lambda: Times(self.busy, 0.0, 99 * self.clock.now, 5.0, 7.0))
        monkeypatch.setattr(psutil, "process_iter", self._listed)
        self.ended = 0.0
        monkeypatch.setattr(os, "getpid", lambda: 10)
        monkeypatch.setattr(
            os, "times", lambda: SimpleNamespace(children_user=self.ended, children_system=0.0)
        )

    def _listed(self, attributes: list[str]) -> Any:
        for (number, parent, name), seconds in self.processes.items():
            times = None if seconds is None else SimpleNamespace(user=seconds / 2, system=seconds / 2)
            told = {
                "name": name,
                "cpu_times": times,
                "create_time": self.born.get(number, 0.0),
                "ppid": parent,
            }
            yield SimpleNamespace(pid=number, info={one: told[one] for one in attributes})

    def passes(self, seconds: float, **taken: float) -> None:
        """Time in which the processes of these names take so many CPU seconds."""
        self.clock.now += seconds
        for key, before in list(self.processes.items()):
            if before is not None:
                self.processes[key] = before + taken.get(key[2], 0.0)
                self.busy += taken.get(key[2], 0.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One with the conductor (10), its worker (11), and three others."""
    one = Machine(monkeypatch)
    one.processes = {
        (1, 0, "init"): 5.0,
        (10, 1, "conductor"): 1.0,
        (11, 10, "worker"): 2.0,
        (20, 1, "rustc"): 100.0,
        (21, 1, "firefox"): 50.0,
    }
    return one


def test_what_others_take_is_all_that_the_cores_did_but_for_ours(machine: Machine) -> None:
    """In cores; named are those that took most, from a twentieth of a core on."""
    watch = Watch()
    machine.passes(10.0, conductor=1.0, worker=9.0, rustc=8.0, firefox=2.0, init=0.1)
    found = watch.others([11])
    assert found.cores == pytest.approx(1.01)
    assert found.names == ("rustc", "firefox")
    assert found.notable
    assert str(found) == "1 cores, most of it rustc and firefox"


def test_what_our_processes_start_is_ours(machine: Machine) -> None:
    """A backend may compute in processes of its own, and those in further ones."""
    machine.processes |= {(12, 11, "pool"): 0.0, (13, 12, "deeper"): 0.0}
    watch = Watch()
    machine.passes(10.0, worker=1.0, pool=5.0, deeper=4.0)
    assert watch.others([11]) == Others(0.0)
