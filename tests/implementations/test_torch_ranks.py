"""Ring attention over processes: right however it is cut; its ranks stop and end with their worker."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from attnlab import system
from attnlab.backends.discovery import load
from attnlab.correctness.answering import Probe
from attnlab.correctness.evidence import weigh
from attnlab.correctness.questions import questions
from attnlab.workload.workload import Workload

distributed = pytest.importorskip("torch.distributed")
if not psutil.LINUX or not distributed.is_available():
    pytest.skip("ranks need Linux and torch.distributed", allow_module_level=True)

WORKLOAD = Workload(batch=2, heads=4, kv_heads=2, queries=12, keys=12, head_dim=8, value_dim=8)
ring = functools.cache(lambda processes: load("torch_ring", (), {"processes": processes}))


@pytest.fixture(scope="module", autouse=True)
def no_ranks_are_left() -> Iterator[None]:
    yield
    from attnlab.libraries import torch_ranks

    for one in torch_ranks._TEAMS.values():
        one.end()


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("processes", ["2", pytest.param("3", marks=pytest.mark.thorough)])
def test_every_cut_is_right_by_the_checks_questions(processes: str, dtype: str, kind: str) -> None:
    """The first questions that it does not decline, three with a causal mask and three without."""
    backend, asked = ring(processes), Counter[bool]()
    probe = Probe(backend)
    for question in questions(dtype, 0, kind):
        workload = question.workload()
        if asked[bool(workload.causal)] == 3 or backend.declines(workload):
            continue
        asked[bool(workload.causal)] += 1
        answers = probe.answer(question.inputs, workload, *question.layouts)
        for name, reference in question.references.items():
            found = weigh(reference, answers[name], **question.weighing(name))
            assert found.passed, f"{name} of {question.text}: {found.reason}"
    assert min(asked[True], asked[False]) > 0


def test_it_reads_inputs_that_were_written_anew_where_they_lie() -> None:
    backend = ring("2")
    library = backend.open("cpu")
    arrays = [library.from_numpy(np.full((1, 1, 4, 8), number), "float32") for number in (1.0, 1.0, 1.0)]
    workload = WORKLOAD.with_(batch=1, heads=1, kv_heads=1, queries=4, keys=4)
    from attnlab.workload.drawing import inputs_of

    call = backend.call(workload, inputs_of(workload), tuple(arrays))
    assert np.all(library.to_numpy(call()) == 1)
    arrays[2][...] = 2.0
    assert np.all(library.to_numpy(call()) == 2)


def test_what_a_ring_cannot_cut_is_declined() -> None:
    declines = ring("3").declines
    assert declines(WORKLOAD) is None
    assert "a multiple of 3 keys, got 13" in str(declines(WORKLOAD.with_(keys=13)))
    assert "a multiple of 6 positions, got 9" in str(declines(WORKLOAD.with_(queries=9, keys=9, causal=True)))
    assert "got 6 and 12" in str(declines(WORKLOAD.with_(queries=6, causal=True)))
    assert "3 processes need a query each, got 2" in str(declines(WORKLOAD.with_(queries=2)))
    assert "needs value_dim = head_dim" in str(declines(WORKLOAD.with_(value_dim=4)))


def test_a_rank_that_is_killed_ends_the_call_and_the_next_one_has_new_ranks() -> None:
    """The ranks are children of this process, and in its group: they are stopped and ended with it."""
    from attnlab.libraries.torch_ranks import team

    backend, before = ring("2"), team(2)
    call = backend.bind(WORKLOAD)
    expected = backend.named(WORKLOAD, call())["output"]
    ranks = [psutil.Process(number) for number in system.started_by(os.getpid())]
    ranks = [one for one in ranks if any("torch_ranks" in word for word in one.cmdline())]
    assert len(ranks) == 2 and {os.getpgid(one.pid) for one in ranks} == {os.getpgid(0)}
    ranks[1].kill()
    with pytest.raises(RuntimeError, match=r"rank 1 of 2|rank 0 of 2"):
        call()
    gone, alive = psutil.wait_procs(ranks, timeout=30)
    assert before.ended and len(gone) == 2 and not alive
    np.testing.assert_array_equal(backend.named(WORKLOAD, backend.bind(WORKLOAD)())["output"], expected)
