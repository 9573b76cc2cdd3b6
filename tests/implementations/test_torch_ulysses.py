"""Attention over processes: right however it is cut, and its ranks are counted, stopped and ended with their worker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from attnlab.contract.backend import Backend
from attnlab.contract.discovery import load
from attnlab.contract.errors import Declined
from attnlab.contract.inputs import problem_of
from attnlab.contract.workload import Workload
from attnlab.libraries.torch_ranks_library import TorchRanks
from attnlab.measuring import system
from attnlab.measuring.contender import Contender
from attnlab.measuring.instruments import PEAK_MEMORY
from attnlab.measuring.worker_process import Refused, WorkerProcess

distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("this PyTorch is built without torch.distributed", allow_module_level=True)

WORKLOAD = Workload(batch=2, heads=4, kv_heads=2, queries=12, keys=12, head_dim=8, value_dim=8)


@pytest.fixture(scope="module")
def ulysses() -> Iterator[Backend]:
    """On two ranks, which end with this module."""
    backend = load("torch_ulysses", (), {"processes": "2"})
    yield backend
    library = backend.open("cpu")
    assert isinstance(library, TorchRanks)
    library.team.end()


CUT = [
    WORKLOAD,
    WORKLOAD.with_(queries=7, keys=13),
    WORKLOAD.with_(queries=1, keys=5),
    WORKLOAD.with_(causal=True),
    WORKLOAD.with_(heads=6, kv_heads=3),
    WORKLOAD.with_(queries=9, keys=4, causal=True, value_dim=3),
    WORKLOAD.with_(dtype="float64", layout="bshd", scale=-0.3),
]


@pytest.mark.parametrize("workload", CUT, ids=lambda one: one.label)
@pytest.mark.parametrize("direction", ["forward", "backward", "training"])
def test_every_cut_gives_what_one_process_gives(ulysses: Backend, workload: Workload, direction: str) -> None:
    """Lengths that the ranks do not share evenly, of one position too; several calls after one another."""
    asked = workload.with_(direction=direction)
    problem, alone = problem_of(asked), load("torch_eager")
    call = ulysses.bind(asked, problem)
    expected = alone.named(asked, alone.bind(asked, problem)())
    for _ in range(2):
        found = ulysses.named(asked, call())
        assert found.keys() == expected.keys()
        for name, one in found.items():
            np.testing.assert_allclose(one, expected[name], rtol=1e-4, atol=1e-5)


def test_an_earlier_answer_stays_as_it_was(ulysses: Backend) -> None:
    """Though it lies on the ranks until somebody reads it, and others were computed since."""
    first, second = WORKLOAD, WORKLOAD.with_(seed=1)
    held = ulysses.bind(first)()
    expected = ulysses.named(first, ulysses.bind(first)())["output"]
    for _ in range(3):
        ulysses.bind(second)()
    assert np.array_equal(ulysses.named(first, held)["output"], expected)


def test_what_nobody_refers_to_is_freed(ulysses: Backend) -> None:
    """On the ranks: calls without end take no more memory than one."""
    call, library = ulysses.bind(WORKLOAD), ulysses.open("cpu")
    assert isinstance(library, TorchRanks)
    call()
    before = library.team.all("count")
    for _ in range(5):
        call()
    assert library.team.all("count") == before


def test_bytes_sent_and_each_ranks_memory_are_recorded(ulysses: Backend) -> None:
    """Of each array a rank sends (N - 1)/N² to others; the peak is the sum of theirs, output and exchange included."""
    workload = WORKLOAD.with_(queries=64, keys=64)
    library = ulysses.open("cpu")
    found = PEAK_MEMORY.measure(library, ulysses.bind(workload))
    arrays = workload.input_bytes + workload.output_bytes
    for rank in range(2):
        assert set(found.columns[f"rank_{rank}_sent_bytes"]) == {arrays / 4}
    each = [found.columns[f"rank_{rank}_peak_bytes"] for rank in range(2)]
    assert found.samples == tuple(map(sum, zip(*each, strict=True)))
    assert min(found.samples) > workload.output_bytes
    assert found.facts == {"method": "sum of the ranks' own peaks"}


def test_heads_that_the_ranks_cannot_share_are_declined(ulysses: Backend) -> None:
    with pytest.raises(Declined, match="2 processes need a head of key and value each, got 1"):
        ulysses.bind(WORKLOAD.with_(kv_heads=1))


def test_a_block_is_declined(ulysses: Backend) -> None:
    """What is cut is the attention alone."""
    with pytest.raises(Declined, match="without projections"):
        ulysses.bind(Workload(d_model=16, heads=2, queries=4, keys=4))()


def test_a_rank_that_fails_is_told_and_the_next_call_has_new_ones() -> None:
    """The others wait for it in vain; they are ended, and nothing hangs."""
    backend = load("torch_ulysses", (), {"processes": "3"})
    library = TorchRanks("cpu")
    team = library.team
    try:
        numbers = library.team.all("count")
        with pytest.raises(RuntimeError, match=r"rank \d of 3: "):
            team.each([("get", -5), ("meet",), ("meet",)])
        with pytest.raises(RuntimeError, match="its ranks have ended"):
            team.all("count")
        assert library.team.all("count") == numbers == [0, 0, 0]
    finally:
        library.team.end()
        load("torch_ulysses", (), {"processes": "2"})
    assert backend.library == "torch_ranks"


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """A worker with two ranks, prepared and stopped."""
    one = WorkerProcess(Contender.parse("torch_ulysses[processes=2]"))
    one.start()
    one.finish_start()
    one.ask("prepare", seconds=120, workload=WORKLOAD.to_dict())
    yield one
    one.end()


def ranks_of(worker: WorkerProcess) -> list[psutil.Process]:
    assert worker.number is not None
    return [psutil.Process(number) for number in system.started_by(worker.number)]


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells of a process's children")
def test_ranks_are_stopped_and_ended_with_their_worker_and_their_memory_counts(worker: WorkerProcess) -> None:
    ranks = ranks_of(worker)
    assert len(ranks) == 2
    assert {one.status() for one in ranks} == {psutil.STATUS_STOPPED}
    own = psutil.Process(worker.number).memory_full_info().uss
    assert worker.resident_bytes() >= own + sum(one.memory_full_info().uss for one in ranks) // 2
    worker.ask("calibrate", seconds=60, warmup_seconds=0.0)
    worker.end()
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert len(gone) == 2 and not alive


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells of a process's children")
def test_a_rank_that_is_killed_ends_the_call_and_not_the_worker(worker: WorkerProcess) -> None:
    """The next workload has new ranks."""
    ranks_of(worker)[1].kill()
    with pytest.raises(Refused, match=r"rank 1 of 2 ended, with status -9|rank 0 of 2: "):
        worker.ask("calibrate", seconds=60, warmup_seconds=0.0)
    worker.ask("prepare", seconds=120, workload=WORKLOAD.to_dict())
    assert worker.ask("calibrate", seconds=60, warmup_seconds=0.0)["seconds"] > 0
