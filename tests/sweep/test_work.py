"""What a job does with a shard: it goes on where the last one stopped, and ends with an outcome."""

from __future__ import annotations

import errno
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sweeping import HERE, Fake, cells_of, plan_file

from attnlab.environment import fingerprint
from attnlab.errors import NotStored
from attnlab.runs import sweep_job
from attnlab.runs.lock import held, host_held
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.runs.sweep_folder import Sweep, by_machine, new_sweep, read_sweep, status
from attnlab.runs.sweep_job import work


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The machine that jobs find."""
    found: dict[str, object] = dict(HERE)
    monkeypatch.setattr(sweep_job, "environment", lambda: dict(found))
    return found


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Six workloads, two contenders, one shard."""
    return new_sweep(Plan.grid(**read_plan(plan_file(tmp_path))), tmp_path / "sweep", 1)


def is_whole(found: Sweep) -> bool:
    """Whether every cell is there, once."""
    there = cells_of(found)
    return len(there) == there.total() == 12


PLAN, RESUME = "--plan", "--resume"


@pytest.mark.parametrize(
    ("ways", "ends", "commands"),
    [
        ([(None, 0)], ["complete", "complete"], [PLAN]),
        # killed at one workload after the other: the next attempt goes on in the same run
        ([(1, -9), (1, -9), (1, -11), (1, -9), (None, 0)], ["complete"], [PLAN, *[RESUME] * 4]),
        ([(2, 130), (None, 0)], ["interrupted", "complete"], [PLAN, RESUME]),
        # one that refuses to go on, as for other versions of libraries, is left for a new one
        ([(2, 130), (0, 2), (None, 0)], ["interrupted", "complete"], [PLAN, RESUME, PLAN]),
    ],
)
def test_a_shard_is_seen_through(
    sweep: Sweep,
    here: dict[str, object],
    ways: list[tuple[int | None, int]],
    ends: list[str],
    commands: list[str],
) -> None:
    """Whatever ends its jobs before, with every cell once."""
    fake = Fake(here, *ways)
    assert [work(sweep.folder, 0, carry=fake) for _ in ends] == ends
    assert fake.commands == commands and is_whole(sweep)
    (merged,) = by_machine(sweep).values()
    assert merged.complete and read_run(merged.folder).results == merged.results


def test_three_deaths_at_one_workload_are_an_outcome(sweep: Sweep, here: dict[str, object]) -> None:
    """Its workload is named, all before it is kept, and only the next series tries again."""
    fake = Fake(here, (2, -9), (0, -9), (0, -9), (None, 0))
    assert [work(sweep.folder, 0, carry=fake) for _ in range(2)] == ["killed"] * 2
    assert len(fake.commands) == 3
    (state,) = status(sweep).states
    assert (state.state, state.done, state.size, state.attempts) == ("killed", 2, 6, 3)
    third = sweep.shard(0).plan.workloads[2].label
    assert state.reason == f"3 jobs ended at {third}, with no result of it"
    again = read_sweep(sweep.folder).begin_again()
    assert work(again.folder, 0, carry=fake) == "complete" and is_whole(again)


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
    first, second = (read_run(one) for one in sweep.runs())
    assert (len(first.results), len(second.results), first.torn) == (4, 8, {})
    assert b': {"contender": "numpy_vec' in (first.folder / "results.torn").read_bytes()
    merged = by_machine(sweep)
    assert is_whole(sweep) and all(one.complete for one in merged.values())
    assert [(len(one.plan.workloads), len(one.results)) for one in merged.values()] == [(2, 4), (4, 8)]
    assert [one.environment["cpu"] for one in merged.values()] == ["this one", "another"]
    assert list(merged) == [fingerprint(first.environment), fingerprint(second.environment)]
    assert status(sweep).states[0].machines == tuple(merged)


@pytest.mark.parametrize(("exit_status", "outcome"), [(2, "refused"), (1, "failed")])
def test_what_no_further_try_can_mend_is_an_outcome_at_once(
    sweep: Sweep, here: dict[str, object], exit_status: int, outcome: str
) -> None:
    """With what the run said last."""
    fake = Fake(here, (0, exit_status))
    assert work(sweep.folder, 0, carry=fake) == outcome and len(fake.commands) == 1
    (state,) = status(sweep).states
    assert state.state == outcome and "what it said last" in str(state.reason)


def test_a_full_disk_leaves_the_shard_to_be_gone_on_with(
    sweep: Sweep, here: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither results nor the journal can be written then: no outcome is noted, and nothing is lost or doubled."""
    fake, flush, left = Fake(here, (None, 0)), os.fsync, [9]

    def until_full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    with monkeypatch.context() as patch, pytest.raises(NotStored, match=f"{sweep.folder}.*No space left"):
        patch.setattr(os, "fsync", until_full)
        work(sweep.folder, 0, carry=fake)
    (state,) = status(sweep).states
    assert state.state == "stopped" and 0 < state.done < 6
    assert work(sweep.folder, 0, carry=fake) == "complete" and is_whole(sweep)
    assert fake.commands == [PLAN, RESUME]


def test_a_journal_that_was_cut_off_is_read_and_gone_on_with(sweep: Sweep) -> None:
    """A kill may come while a line is written."""
    shard = sweep.shard(0)
    shard.note("started")
    with (shard.folder / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "end')
    assert [one["event"] for one in shard.journal()] == ["started"]
    shard.note("ended", status=130)
    assert [one["event"] for one in shard.journal()] == ["started", "ended"], "glued to what was cut off"


def test_a_host_stays_held_by_what_was_started() -> None:
    """Whoever does not wait is refused, also when the job was killed and its run lives on."""
    with host_held() as handle:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[handle])
        with pytest.raises(ValueError, match="another process measures on this host"), host_held(wait=False):
            pass
    try:
        with pytest.raises(ValueError, match="another process measures"), host_held(wait=False):
            pass
    finally:
        child.communicate()
    with host_held(wait=False):
        pass


def test_who_waits_for_a_folder_gets_it(tmp_path: Path) -> None:
    def second() -> None:
        with held(tmp_path, wait=True):
            pass

    with ThreadPoolExecutor(1) as pool:
        with held(tmp_path):
            waiting = pool.submit(second)
            assert not waiting.done()
        waiting.result()
