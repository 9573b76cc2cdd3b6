"""Attention over processes: right however it is cut, and its ranks are counted, stopped and ended with their worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from attnlab import system
from attnlab.backends.backend import Backend
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import load
from attnlab.correctness.evidence import weigh
from attnlab.correctness.questions import questions
from attnlab.libraries.torch_ranks_library import TorchRanks
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.race.probe import Probe
from attnlab.race.worker_process import Refused, WorkerProcess
from attnlab.workload.workload import Workload

distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("this PyTorch is built without torch.distributed", allow_module_level=True)

WORKLOAD = Workload(batch=2, heads=4, kv_heads=2, queries=12, keys=12, head_dim=8, value_dim=8)


RANKS = [
    "torch_ulysses 2",
    "torch_ring 2",
    pytest.param("torch_ring 1", marks=pytest.mark.thorough),
    pytest.param("torch_ring 3", marks=pytest.mark.thorough),
]


@pytest.fixture(scope="module", params=RANKS)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A backend and a number of ranks, which end before others are asked for."""
    name, processes = request.param.split()
    yield name, processes
    ended(load(name))


@pytest.fixture
def over_ranks(named: tuple[str, str]) -> Backend:
    name, processes = named
    return load(name, (), {"processes": processes})


def ended(backend: Backend) -> None:
    library = backend.open("cpu")
    assert isinstance(library, TorchRanks)
    library.team.end()


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_cut_is_right_by_the_gates_questions(over_ranks: Backend, dtype: str, kind: str) -> None:
    """The first ones that it does not decline, with and without a causal mask, judged as whoever merges parts."""
    probe, asked = Probe(over_ranks), Counter[bool]()
    for question in questions(dtype, 0, kind):
        workload = question.workload()
        if asked[bool(workload.causal)] == 3 or over_ranks.declines(workload):
            continue
        asked[bool(workload.causal)] += 1
        answers = probe.answer(question.problem, workload, *question.layouts)
        for name, reference in question.references_of(over_ranks.parts).items():
            found = weigh(reference, answers[name], **question.weighing(name))
            assert found.passed, f"{name} of {question.text}: {found.reason}"
    assert min(asked[True], asked[False]) > 0


def sent_by(backend: Backend, workload: Workload) -> list[float]:
    """Bytes that each rank sends in one call, once memory and messages are found to be told of each."""
    library = backend.open("cpu")
    found = PEAK_MEMORY.measure(library, backend.bind(workload))
    assert isinstance(library, TorchRanks)
    ranks = range(library.team.count)
    each = [found.columns[f"rank_{rank}_peak_bytes"] for rank in ranks]
    assert found.samples == tuple(map(sum, zip(*each, strict=True)))
    assert min(found.samples) > workload.output_bytes
    assert max(found.samples) < 2**23 * len(each)  # no library that PyTorch imports meanwhile
    assert found.facts == {"method": "sum of the ranks' own peaks"}
    told = [set(found.columns[f"rank_{rank}_sent_bytes"]) for rank in ranks]
    assert all(len(one) == 1 for one in told)
    return [one.pop() for one in told]


def test_bytes_sent_are_those_of_the_algorithm(over_ranks: Backend) -> None:
    """Heads: (N - 1)/N² of every array. Ring: N - 1 times its part of keys and values, and N times their gradients."""
    workload = WORKLOAD.with_(queries=96, keys=96)
    count = int(over_ranks.settings["processes"])
    forward, backward = (
        sent_by(over_ranks, workload.with_(direction=one)) for one in ("forward", "backward")
    )
    if over_ranks.name == "torch_ulysses":
        part = (workload.input_bytes + workload.output_bytes) * (count - 1) / count**2
        assert forward == backward == [part] * count
        return
    part = 2 * 4 * workload.batch * workload.kv_heads * workload.keys * workload.head_dim / count
    gradients = count * part if count > 1 else 0
    assert forward == sent_by(over_ranks, workload.with_(causal=True)) == [(count - 1) * part] * count
    assert backward == [(count - 1) * part + gradients] * count


def test_what_a_ring_cannot_cut_is_declined() -> None:
    declines = load("torch_ring", (), {"processes": "3"}).declines
    assert declines(WORKLOAD) is None
    assert "a multiple of 3 keys, got 13" in str(declines(WORKLOAD.with_(keys=13)))
    assert "a multiple of 6 positions, got 9" in str(declines(WORKLOAD.with_(queries=9, keys=9, causal=True)))
    assert "as many, got 6 and 12" in str(declines(WORKLOAD.with_(queries=6, causal=True)))
    assert "3 processes need a query each, got 2" in str(declines(WORKLOAD.with_(queries=2)))
    assert "needs value_dim = head_dim" in str(declines(WORKLOAD.with_(value_dim=4)))


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """A worker with two ranks, prepared and stopped."""
    one = WorkerProcess(Contender.parse("torch_ulysses[processes=2]"))
    one.start()
    one.finish_start()
    one.ask("prepare", seconds=120, workload=WORKLOAD)
    yield one
    one.end()


def ranks_of(worker: WorkerProcess) -> list[psutil.Process]:
    assert worker.number is not None
    return [psutil.Process(number) for number in system.started_by(worker.number)]


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells of a process's children")
def test_ranks_are_stopped_counted_and_ended_with_their_worker(worker: WorkerProcess) -> None:
    """One that is killed ends the call and not the worker: the next workload has new ranks."""
    ranks = ranks_of(worker)
    assert len(ranks) == 2 and {one.status() for one in ranks} == {psutil.STATUS_STOPPED}
    own = psutil.Process(worker.number).memory_full_info().uss
    assert worker.resident_bytes() >= own + sum(one.memory_full_info().uss for one in ranks) // 2
    ranks[1].kill()
    with pytest.raises(Refused, match=r"rank 1 of 2 was killed by SIGKILL|rank 0 of 2: "):
        worker.ask("calibrate", seconds=60, warmup_seconds=0.0)
    worker.ask("prepare", seconds=120, workload=WORKLOAD)
    assert worker.ask("calibrate", seconds=60, warmup_seconds=0.0)["seconds"] > 0
    ranks = ranks_of(worker)
    worker.end()
    gone, alive = psutil.wait_procs(ranks, timeout=30)
    assert len(gone) == 2 and not alive
