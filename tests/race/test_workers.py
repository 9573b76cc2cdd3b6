"""Contenders in real processes: they crash, hang, lie and print, and the race goes on without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_workers import QUICK

from attnlab.backends.contender import parse_all
from attnlab.race import worker_process
from attnlab.race.conductor import Conductor
from attnlab.race.guard import marked
from attnlab.race.limits import Limits
from attnlab.workload.captured import save
from attnlab.workload.drawing import problem_of
from attnlab.workload.grid import workloads
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

SMALL = Workload(heads=2, queries=8, keys=8, head_dim=4)
OTHER = SMALL.with_(queries=16, keys=16)

BACKEND = """
import ctypes, os, signal, sys
import numpy as np
from attnlab.implementations.numpy_vectorized import attend as right

LIBRARY = "numpy"
calls = 0


def attend(query, key, value, *, causal, scale):
    global calls
    calls += 1
    {body}
"""
RIGHT = "return right(query, key, value, causal=causal, scale=scale)"
BODIES = {
    "good": RIGHT,
    "scaled": RIGHT + " * np.float32(1.001)",
    "nan": RIGHT + " * np.float32('nan')",
    "shape": RIGHT + "[..., :2]",
    "spoils": "answer = right(query, key, value, causal=causal, scale=scale); query *= 2; return answer",
    "leaves_one": "os.fork() or signal.pause(); os._exit(3)",
    "once": "if query.shape[2] == 8: os._exit(3)\n    " + RIGHT,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with one backend for every way to be wrong, and three that cannot be loaded."""
    place = tmp_path_factory.mktemp("backends")
    for name, body in BODIES.items():
        written(place, name, body)
    (place / "broken.py").write_text("raise RuntimeError('on import')", encoding="utf-8")
    (place / "dies_early.py").write_text("import os; os._exit(9)", encoding="utf-8")
    (place / "needs.py").write_text("import nosuchlibrary", encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def as_many_threads_as_a_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have their pools here, without which their threads could be neither set nor stopped."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """After every test here: no worker, no zombie, no open pipe."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert psutil.Process().children(recursive=True) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def conducting(
    folder: Path, *names: str, limits: Limits = QUICK, memory: bool = False, **more: Any
) -> Conductor:
    """The conductor of these contenders."""
    return Conductor(parse_all(names), folders=[str(folder)], limits=limits, memory=memory, **more)


def race(folder: Path, *names: str, **options: Any) -> list[Result]:
    """One race of these contenders."""
    with conducting(folder, *names, **options) as conductor:
        return conductor.race(SMALL)


def written(folder: Path, name: str, body: str) -> None:
    """A backend file with this body."""
    (folder / f"{name}.py").write_text(BACKEND.format(body=body), encoding="utf-8")


# -- one that fails ends, the others go on --------------------------------------------------------------


def test_every_way_to_be_wrong_has_its_outcome_and_the_others_are_measured(folder: Path) -> None:
    """Each with a reason of one line; the results come in the order of the plan."""
    expected = {
        "good": (Outcome.MEASURED, ""),
        "scaled": (Outcome.WRONG, "above the worst case of rounding"),
        "nan": (Outcome.WRONG, "NaN in 64 of 64 values"),
        "shape": (Outcome.WRONG, "shape returned shape (1, 2, 8, 2), expected (1, 2, 8, 4)"),
        "spoils": (Outcome.WRONG, "right at the first call, but at the second: "),
        "leaves_one": (Outcome.CRASHED, "its process exited with status 3"),
        "broken": (Outcome.UNAVAILABLE, "broken.py fails on import: RuntimeError: on import (line 1)"),
        "dies_early": (Outcome.CRASHED, "its process exited with status 9"),
        "needs": (Outcome.UNAVAILABLE, "needs needs nosuchlibrary, which is not installed"),
    }
    results = race(folder, *expected)
    assert [result.contender for result in results] == list(expected)
    for result in results:
        outcome, reason = expected[result.contender]
        assert result.outcome == outcome, result.reason
        assert reason in (result.reason or "")
        assert "\n" not in (result.reason or "")


def test_a_dead_worker_is_replaced_for_the_next_workload_and_a_broken_file_is_not(folder: Path) -> None:
    """What failed on one workload may do the next."""
    started: list[str] = []
    with conducting(folder, "once", "good", "broken", on_event=started.append) as conductor:
        first, second = conductor.race(SMALL), conductor.race(OTHER)
    assert [result.outcome for result in first] == ["crashed", "measured", "unavailable"]
    assert [result.outcome for result in second] == ["measured", "measured", "unavailable"]
    assert started.count("starting broken") <= 2  # once in each set, where these start together


def test_where_processes_cannot_be_forked_they_start_by_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race goes on, and the result says so."""
    monkeypatch.setattr(worker_process, "before_fork", lambda name, folders: ("attnlab.nosuchmodule",))
    results = race(folder, "good", "good")
    assert [result.outcome for result in results] == ["measured", "measured"]
    said = "started afresh: the process that was to fork it raised ModuleNotFoundError"
    assert all(said in (result.reason or "") and "(2 times)" in (result.reason or "") for result in results)


@pytest.mark.parametrize("forked", [True, False])
def test_what_a_backend_does_where_it_is_leaves_the_users_files_alone(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an empty folder of its own, gone afterwards."""
    written(tmp_path, "sweeping", f"sweep(); {RIGHT}")
    with (tmp_path / "sweeping.py").open("a", encoding="utf-8") as file:
        file.write(
            "\ndef sweep():\n    [os.remove(one) for one in os.listdir()]\n    open('mine', 'w').close()\n"
        )
        file.write("    open(__file__ + '.log', 'a').write(os.getcwd() + os.linesep)\nsweep()\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("all of it")
    monkeypatch.chdir(mine)
    if not forked:
        monkeypatch.setattr(worker_process, "before_fork", lambda name, folders: None)
    (result,) = race(Path(".."), "sweeping")
    assert result.outcome is Outcome.MEASURED, result.reason
    assert [one.name for one in mine.iterdir()] == ["thesis"]
    places = set((tmp_path / "sweeping.py.log").read_text().split())
    assert len(places) == QUICK.processes
    assert not any(Path(place).exists() for place in places)


def test_the_path_of_a_file_of_inputs_is_meant_from_where_the_user_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its reader is elsewhere."""
    pytest.importorskip("safetensors", reason="safetensors is not installed; pip install 'attnlab[diagnose]'")
    monkeypatch.chdir(tmp_path)
    save(Path("qkv.safetensors"), {"layer": problem_of(SMALL)})
    (workload,) = workloads({"distribution": "qkv.safetensors"}, grid=False)
    with conducting(folder, "good") as conductor:
        (result,) = conductor.race(workload)
    assert result.outcome is Outcome.MEASURED, result.reason


# -- only one is runnable -------------------------------------------------------------------------------


def test_while_one_computes_all_others_are_stopped(tmp_path: Path) -> None:
    """Looked at from within a backend at every call: state T of each thread of every sibling."""
    watcher = """
import json, os
from pathlib import Path
from typing import Any

seen = []
parent = os.getppid()


def states():
    for sibling in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        guard = b"guard" in Path(f"/proc/{sibling}/cmdline").read_bytes()
        if int(sibling) != os.getpid() and not guard:
            for task in Path(f"/proc/{sibling}/task").iterdir():
                yield (task / "stat").read_text().rpartition(")")[2].split()[0]


def watch():
    seen.append(sorted(states()))
    Path(__file__).with_suffix(f".{os.getpid()}.json").write_text(json.dumps(seen))
"""
    body = "import watcher_of_states; watcher_of_states.watch()\n    " + RIGHT
    (tmp_path / "_watcher").mkdir()
    (tmp_path / "_watcher" / "watcher_of_states.py").write_text(watcher, encoding="utf-8")
    written(tmp_path, "watching", body)
    # a first worker may start while another is still on its way; from the race on all wait
    results = race(tmp_path, *[f"watching[PYTHONPATH={tmp_path / '_watcher'}]"] * 3)
    assert [result.outcome for result in results] == ["measured"] * 3, results[0].reason
    records = [json.loads(file.read_text()) for file in (tmp_path / "_watcher").glob("*.json")]
    assert len(records) == 2 * 3
    for record in records:
        assert len(record) > 3  # a check, and calls of three turns: fewer where a call is long
        assert all(len(states) >= 2 and set(states) == {"T"} for states in record)


# -- settings -------------------------------------------------------------------------------------------


def test_variables_and_threads_really_arrive(tmp_path: Path) -> None:
    """In the process's environment before NumPy is imported, and in the thread pools."""
    reason = "' '.join([os.environ.get('COLOUR', '-'), os.environ.get('OMP_NUM_THREADS', '-')])"
    source = BACKEND.format(body=RIGHT) + f"\n\ndef declines(workload):\n    return {reason}\n"
    (tmp_path / "telling.py").write_text(source, encoding="utf-8")
    written(tmp_path, "plain", RIGHT)
    names = ["telling[COLOUR=blue,threads=1]", "plain[threads=1]"]
    with conducting(tmp_path, *names) as conductor:
        telling, plain = conductor.race(SMALL)
        facts = conductor.facts("cpu")
    assert (telling.outcome, telling.reason) == (Outcome.DECLINED, "blue 1")
    assert plain.outcome is Outcome.MEASURED
    for name in names:
        assert {pool["num_threads"] for pool in facts[name]["pools"]} == {1}
        assert facts[name]["versions"]["numpy"]


# -- memory ---------------------------------------------------------------------------------------------


def test_peak_memory_is_exact_for_an_allocation_that_is_known(tmp_path: Path) -> None:
    """24 MiB beside small arrays, within 1 %; inputs do not count, and no file stays open."""
    known = 24 * 2**20
    written(tmp_path, "hungry", f"spare = np.empty({known}, np.uint8); spare[:] = 1; " + RIGHT)
    (result,) = race(tmp_path, "hungry", memory=True)
    assert result.peak_bytes == pytest.approx(known, rel=0.01)
    memory = result.measurement("peak_memory")
    assert memory is not None and memory.facts == {"method": "memray"}


# -- the end --------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_stopped_workers_die_with_a_conductor_that_is_killed(folder: Path) -> None:
    """SIGKILL leaves it no time to tidy, and a stopped process hears no closed pipe. Their folders go too."""
    script = textwrap.dedent(f"""
        import signal
        from attnlab.backends.contender import parse_all
        from attnlab.race.conductor import Conductor
        from attnlab.race.limits import Limits
        one = Limits(processes=1)
        with Conductor(parse_all(["good", "good"]), folders=[{str(folder)!r}], limits=one) as conductor:
            print(*[worker.number for worker in conductor.sets.workers], flush=True)
            signal.pause()
    """)
    conductor = subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert conductor.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in conductor.stdout.readline().split()]
        assert [worker.status() for worker in workers] == [psutil.STATUS_STOPPED] * 2
        places = [Path(worker.cwd()) for worker in workers]
        assert all(place.is_dir() for place in places)
        guards = [one for one in psutil.Process(conductor.pid).children() if one not in workers]
    finally:
        conductor.kill()
        conductor.communicate()
    _, alive = psutil.wait_procs([*workers, *guards], timeout=30)
    assert not any(place.exists() for place in places)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive), "an orphan stays stopped for ever"


def test_nothing_is_left_of_a_parent_whose_conductor_is_killed(folder: Path, tmp_path: Path) -> None:
    """While it imports, and has started a process of its own."""
    hanging = f"""
        import os, subprocess, sys, time
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], start_new_session=True)
        with open({str(tmp_path / "written")!r}, "w") as file:
            file.write(os.environ["ATTNLAB_CONDUCTOR"])
        os.rename(file.name, {str(tmp_path / "mark")!r})
        time.sleep(3600)
    """
    script = f"""
        from attnlab.backends.contender import parse_all
        from attnlab.race import worker_process
        from attnlab.race.conductor import Conductor
        worker_process.before_fork = lambda name, folders: ("hanging",)
        Conductor(parse_all(["good", "good"]), folders=[{str(folder)!r}]).__enter__()
    """
    (tmp_path / "hanging.py").write_text(textwrap.dedent(hanging), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    conductor = subprocess.Popen([sys.executable, "-P", "-c", textwrap.dedent(script)], env=environment)
    try:
        mark = waited_for((tmp_path / "mark").exists) and (tmp_path / "mark").read_text()
        assert len(marked(mark)) >= 2
    finally:
        conductor.kill()
        conductor.wait()
    assert waited_for(lambda: not marked(mark))


def waited_for(done: Callable[[], bool]) -> bool:
    """Whether it comes true, within what no machine takes."""
    until = time.monotonic() + 300
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()
