"""What a job does with a shard: it goes on where the last one stopped, and ends with an outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sweeping import cells, plan_file

from attnlab.errors import NotStored
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.race import environment as environments
from attnlab.race.environment import fingerprint
from attnlab.runs import sweep_folder as folders
from attnlab.runs import sweep_work as works
from attnlab.runs.lock import held, host_held, host_lock
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import Run, read_run
from attnlab.runs.sweep_folder import Shard, Sweep, append_line, new_sweep, read_sweep
from attnlab.runs.sweep_jobs import SUBMITTED, Asked, Cluster, Job
from attnlab.runs.sweep_merging import by_machine, results
from attnlab.runs.sweep_progress import status
from attnlab.runs.sweep_work import deaths, run_command, work

LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 2.0)})
HERE = {"cpu": "this one", "cores": {"logical": 2}, "memory_bytes": 2**33}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The machine that jobs find, and a host of the test's own."""
    found: dict[str, object] = dict(HERE)
    monkeypatch.setattr(works, "environment", lambda: dict(found))
    monkeypatch.setattr(works, "fingerprint", lambda told: fingerprint(told))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return found


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Six workloads, two contenders, one shard."""
    return new_sweep(Plan.grid(**read_plan(plan_file(tmp_path))), tmp_path / "sweep", 1)


def first_command(shard: Shard) -> list[str]:
    """That begins a run of it."""
    plan = str(shard.folder / "plan.toml")
    return [sys.executable, "", "", "", "run", "--plan", plan, "", str(shard.next_run())]


class Fake:
    """Stands for ``attnlab run``: does so many workloads, then ends as told; the last way is kept to."""

    def __init__(self, here: dict[str, object], *ways: tuple[int | None, int]) -> None:
        self.here, self.ways, self.commands = here, list(ways), list[str]()
        self.torn = b""

    def __call__(self, command: Sequence[str], descriptors: Sequence[int]) -> tuple[int, str]:
        self.commands.append(" ".join(command[4:6]))
        count, exit_status = self.ways.pop(0) if len(self.ways) > 1 else self.ways[0]
        run = (
            read_run(command[6])
            if command[5] == "--resume"
            else self._begun(Path(command[6]), Path(command[8]))
        )
        left = run.left()
        for one in left if count is None else left[:count]:
            run.append(
                [Result(name, one, Outcome.MEASURED, measurements=(LATENCY,)) for name in run.contenders]
            )
        if self.torn:
            with (run.folder / "results.jsonl").open("ab") as file:
                file.write(self.torn)
            self.torn = b""
        if not run.left() and exit_status >= 0:
            run.complete = True
            run.save()
        return exit_status, "what it said last"

    def _begun(self, plan: Path, folder: Path) -> Run:
        found = Plan.grid(**read_plan(plan))
        folder.mkdir()
        run = Run(folder, found, dict(self.here), found.contenders, str(found.baseline), started="2026-01-01")
        run.save()
        return run


def left_alone(found: Sweep) -> None:
    """Every cell once, and all of them."""
    there = cells(results(found))
    assert len(there) == there.total() == 12


def test_a_shard_is_a_plain_command(sweep: Sweep, here: dict[str, object]) -> None:
    """Done at once; its run is one like any other, and a second job finds nothing to do."""
    fake = Fake(here, (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert fake.commands == ["run --plan"]
    assert sweep.runs() == [sweep.folder / "shards" / "0000" / "run-1"]
    left_alone(sweep)


def test_a_job_that_is_killed_is_gone_on_with(sweep: Sweep, here: dict[str, object]) -> None:
    """By the next attempt, in the same run; deaths at different workloads are no outcome."""
    fake = Fake(here, (1, -9), (1, -9), (1, -11), (1, -9), (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert fake.commands == ["run --plan", *["run --resume"] * 4]
    assert len(sweep.runs()) == 1
    left_alone(sweep)


def test_three_deaths_at_one_workload_are_an_outcome(sweep: Sweep, here: dict[str, object]) -> None:
    """Its workload is named, all before it is kept, and only the next series tries again."""
    fake = Fake(here, (2, -9), (0, -9), (0, -9), (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "killed"
    assert len(fake.commands) == 3
    (state,) = status(sweep).states
    assert (state.state, state.done, state.size, state.attempts) == ("killed", 2, 6, 3)
    third = sweep.shard(0).plan.workloads[2].label
    assert state.reason == f"3 jobs ended at {third}, with no result of it"
    assert work(sweep.folder, 0, carry=fake) == "killed" and len(fake.commands) == 3
    again = read_sweep(sweep.folder).begin_again()
    assert work(again.folder, 0, carry=fake) == "complete"
    left_alone(again)


def test_a_job_that_ends_with_its_node_counts_as_a_death(sweep: Sweep) -> None:
    """It leaves a line that it began and none that it ended; what other series saw does not count."""
    began = {"event": "started", "series": 1, "done": 2}
    asked_to_stop = {"event": "ended", "status": 130, "done": 2}
    assert deaths([began, began], 1, 2) == 2
    assert deaths([began, began], 1, 3) == 1, "the second one did a workload"
    assert deaths([began, asked_to_stop, began], 1, 2) == 1
    assert deaths([began, began], 2, 2) == 0
    assert deaths([], 1, 0) == 0


def test_another_kind_of_machine_does_what_is_left_in_a_run_of_its_own(
    sweep: Sweep, here: dict[str, object]
) -> None:
    """Races are of one machine each; what the first was cut off in is set aside there."""
    fake = Fake(here, (2, 130), (None, 0))
    fake.torn = b'{"contender": "numpy_vec'
    assert work(sweep.folder, 0, carry=fake) == "interrupted"
    assert status(sweep).states[0].state == "stopped"
    (cut_off,) = by_machine(sweep).values()
    assert not cut_off.complete and (len(cut_off.results), len(cut_off.plan.workloads)) == (4, 6)
    here["cpu"] = "another"
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert fake.commands == ["run --plan", "run --plan"]
    first, second = (read_run(one) for one in sweep.runs())
    assert (len(first.results), len(second.results), first.torn) == (4, 8, False)
    assert (first.folder / "results.torn").read_bytes().startswith(b'{"contender": "numpy_vec')
    left_alone(sweep)
    merged = by_machine(sweep)
    assert sorted(len(one.plan.workloads) for one in merged.values()) == [2, 4]
    assert all(one.complete for one in merged.values()), "nothing that the first was cut off in is missing"
    assert [one.environment["cpu"] for one in merged.values()] == ["this one", "another"]
    assert list(merged) == [fingerprint(first.environment), fingerprint(second.environment)]
    assert status(sweep).states[0].machines == tuple(merged)


def test_the_same_kind_of_machine_goes_on_with_the_run(sweep: Sweep, here: dict[str, object]) -> None:
    """Whatever its name is."""
    fake = Fake(here, (2, 130), (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "interrupted"
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert fake.commands == ["run --plan", "run --resume"]
    assert len(by_machine(sweep)) == 1


def test_a_run_that_refuses_to_go_on_is_left_for_a_new_one(sweep: Sweep, here: dict[str, object]) -> None:
    """As for other versions of libraries, which show only when they are loaded."""
    fake = Fake(here, (2, 130), (0, 2), (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "interrupted"
    assert work(sweep.folder, 0, carry=fake) == "complete"
    assert fake.commands == ["run --plan", "run --resume", "run --plan"]
    left_alone(sweep)


@pytest.mark.parametrize(("exit_status", "outcome"), [(2, "refused"), (1, "failed")])
def test_what_no_further_try_can_mend_is_an_outcome_at_once(
    sweep: Sweep, here: dict[str, object], exit_status: int, outcome: str
) -> None:
    """With what the run said last."""
    fake = Fake(here, (0, exit_status))
    assert work(sweep.folder, 0, carry=fake) == outcome
    assert len(fake.commands) == 1
    (state,) = status(sweep).states
    assert state.state == outcome and "what it said last" in str(state.reason)


def test_a_job_of_another_version_is_refused_with_both(
    sweep: Sweep, here: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is run."""
    fake = Fake(here, (None, 0))
    cut_by = sweep.told.attnlab
    monkeypatch.setattr(folders, "version", lambda name: "99.0")
    with pytest.raises(
        ValueError, match=rf"is of attnlab {cut_by}, and this is attnlab 99\.0: install that version"
    ):
        work(sweep.folder, 0, carry=fake)
    assert not fake.commands and not sweep.shard(0).journal()
    assert Job()(str(sweep.folder), 0) == "refused", "by a job of a cluster it is the outcome, not a failure"
    (state,) = status(sweep).states
    assert state.state == "refused" and f"is of attnlab {cut_by}, and this is attnlab 99.0" in str(
        state.reason
    )


def test_clocks_that_differ_are_told_and_measure_nothing(
    sweep: Sweep, here: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host an hour behind the files: no duration is taken over both clocks."""
    real = time.time
    monkeypatch.setattr(works.time, "time", lambda: real() - 3600)
    assert work(sweep.folder, 0, carry=Fake(here, (2, 130))) == "interrupted"
    monkeypatch.undo()
    found = status(sweep)
    (line,) = found.clocks()
    assert " is 3600 s behind that of the files" in line
    assert found.states[0].seconds < 600
    journal = sweep.shard(0).folder / "journal.jsonl"
    kept = [line for line in journal.read_text(encoding="utf-8").splitlines() if '"ended"' not in line]
    journal.write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert status(sweep).states[0].seconds < 600, "of an attempt that was killed too"


def test_the_time_left_follows_from_what_was_seen(sweep: Sweep) -> None:
    """Seconds a workload so far, times those that are left."""
    assert status(sweep).seconds_left is None
    shard = sweep.shard(0)
    run = Fake(dict(HERE), (2, 130))
    run(first_command(shard), [])
    shard.note("started", series=1, run="run-1", host="a", machine="m", time=1000.0, clock_s=0.0, done=0)
    shard.note("ended", status=130, said="", done=2, time=1030.0)
    found = status(sweep)
    assert (found.done, found.size, found.seconds_a_workload, found.seconds_left) == (2, 6, 15.0, 60.0)


def test_a_journal_that_was_cut_off_is_read_up_to_there(sweep: Sweep) -> None:
    """A kill may come while a line is written."""
    shard = sweep.shard(0)
    shard.note("started", series=1)
    with (shard.folder / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "end')
    assert [one["event"] for one in shard.journal()] == ["started"]
    shard.note("ended", status=130)
    assert [one["event"] for one in shard.journal()] == ["started", "ended"], "glued to what was cut off"


def test_a_list_of_jobs_that_was_cut_off_is_read_and_gone_on_with(sweep: Sweep) -> None:
    """A disk may be full while it is written."""
    pytest.importorskip("submitit", reason="submitit is not installed; pip install 'attnlab[sweep]'")
    (sweep.folder / SUBMITTED).write_text('[0, "17_0"]\n[1, "17', encoding="utf-8")
    append_line(sweep.folder / SUBMITTED, '[2, "18"]')
    assert Cluster(sweep, Asked()).submitted() == {0: "17_0", 2: "18"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_by_the_name_of_the_file() -> None:
    """As for results."""
    with pytest.raises(NotStored, match="/dev/full cannot be written to: No space left on device"):
        append_line(Path("/dev/full"), "a line")


def test_two_runs_with_one_workload_are_told_apart_from_a_whole_sweep(
    sweep: Sweep, here: dict[str, object]
) -> None:
    """Doubled results are never handed out."""
    fake = Fake(here, (None, 0))
    assert work(sweep.folder, 0, carry=fake) == "complete"
    shard = sweep.shard(0)
    fake(first_command(shard), [])
    with pytest.raises(ValueError, match="two of its runs have results of the workload"):
        list(results(sweep))


def test_one_measures_on_a_host_at_a_time() -> None:
    """Whoever does not wait is refused; a process that was given the descriptor goes on holding the host."""
    with host_held() as handle, subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[handle]) as child:
        with pytest.raises(ValueError, match="another process measures on this host"), host_held(wait=False):
            pass
        os.close(os.dup(handle))
        assert host_lock().is_file()
        assert child.poll() is None
        child.communicate()
    with host_held(wait=False):
        pass


def test_a_host_stays_held_by_what_was_started(tmp_path: Path) -> None:
    """Its job may be killed: as long as the run lives, nobody else measures."""
    child = None
    try:
        with host_held() as handle:
            child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[handle])
        with pytest.raises(ValueError, match="another process measures"), host_held(wait=False):
            pass
    finally:
        if child is not None:
            child.communicate()
    with host_held(wait=False):
        pass


def test_who_waits_for_a_folder_gets_it(tmp_path: Path) -> None:
    """As soon as it is free."""
    got = threading.Event()

    def second() -> None:
        with held(tmp_path, wait=True):
            got.set()

    with held(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not got.is_set()
    assert got.wait(30)
    waiting.join()


def test_a_command_tells_how_it_ended() -> None:
    """Its exit status, or the signal that ended it, and its last line."""
    say = "import sys; print('first', file=sys.stderr); print('last', file=sys.stderr); "
    assert run_command([sys.executable, "-c", say + "sys.exit(3)"], []) == (3, "last")
    assert run_command([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], []) == (-9, "")


def test_kinds_of_machines_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By hardware and clock settings; not by software, load or a little memory."""
    found = environments.environment()
    same = {**found, "load_at_start": 9.0, "python": "another", "memory_bytes": found["memory_bytes"] + 2**20}
    assert fingerprint(found) == fingerprint(json.loads(json.dumps(same)))
    others = [
        {**found, name: value}
        for name, value in (
            ("cpu", "x"),
            ("cores", {"logical": 999}),
            ("governor", "slow"),
            ("gpus", ["a card"]),
            ("memory_bytes", 2**50),
        )
    ]
    assert len({fingerprint(one) for one in (found, *others)}) == len(others) + 1
    assert fingerprint({}).startswith("unknown-")
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "information").write_text("Model: \t\t A card\nIRQ: 3\n", encoding="utf-8")
    monkeypatch.setattr(environments, "_GPUS", tmp_path)
    assert environments.environment()["gpus"] == ["A card"]
