"""Parts of the keys, merged by their ln Z, give what whole keys give: wherever they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every import here
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.backend.calling import merge
from attnlab.backend.library import open_library
from attnlab.gate.evidence import weigh
from attnlab.gate.reference import refer
from attnlab.problem.inputs import problem_of
from attnlab.problem.problem import Problem
from attnlab.problem.vocabulary import LOG_SUM, OUTPUT
from attnlab.problem.workload import Workload
from attnlab.theory import log_sums

GIVING = ["naive_loop", "numpy_blocked", "torch_eager", "torch_sdpa_flash"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Workload, list[int]]:
    """Any small workload of one of the masks, and where its keys are cut: also twice at one place, and at the ends."""
    batch, keys = draw(st.integers(1, 2)), draw(st.integers(1, 12))
    workload = Workload(
        batch=batch,
        heads=2,
        kv_heads=draw(st.sampled_from([1, 2])),
        queries=draw(st.integers(1, 6)),
        keys=keys,
        head_dim=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(["float16", "float32", "float64"])),
        causal=draw(st.sampled_from((False, "top_left", "bottom_right"))),  # type: ignore[arg-type]  # joined to object
        window=draw(st.none() | st.tuples(st.integers(0, keys), st.integers(-1, keys))),
        key_lengths=draw(st.none() | st.tuples(*[st.integers(0, keys)] * batch)),
        mask=draw(st.sampled_from(["", "random(0.3,1)"])),
        bias=draw(st.sampled_from(["none", "normal", "alibi"])),
        softcap=draw(st.none() | st.just(3.0)),
        sinks=draw(st.booleans()),
        distribution=draw(st.sampled_from(["normal", "logit_std_8"])),
        seed=draw(st.integers(0, 999)),
    )
    return workload, sorted(draw(st.lists(st.integers(0, keys), max_size=5)))


def whole(problem: Problem) -> tuple[Any, Any]:
    """Output and ln Z, in float64."""
    found = log_sums(problem)
    return found.output, found.log_sum[..., 0]


@given(problems())
@settings(max_examples=60, deadline=None)
def test_parts_cut_anywhere_merge_to_the_whole(asked: tuple[Workload, list[int]]) -> None:
    """In exact arithmetic: empty parts, parts that nothing is seen of, sinks counted once."""
    workload, cuts = asked
    problem = problem_of(workload)
    found = [whole(part) for _, part in problem.parts(cuts)]
    output, log_sum = merge(open_library("numpy"), found, "float64")
    exact, exact_log_sum = whole(problem)
    np.testing.assert_allclose(output, exact, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(log_sum, exact_log_sum, rtol=1e-11, atol=1e-11)
    assert (np.isneginf(log_sum) == np.isneginf(exact_log_sum)).all()


@pytest.mark.parametrize("name", GIVING)
@given(asked=problems(), splits=st.integers(1, 14))
@settings(max_examples=12, deadline=None)
def test_backends_give_ln_z_and_merge_within_the_budget(
    name: str, asked: tuple[Workload, list[int]], splits: int
) -> None:
    """Of any workload that they do not decline, in up to more parts than there are keys."""
    backend = here(name)
    workload = asked[0].with_(direction="forward_with_log_sum", splits=splits)
    if backend.declines(workload):
        return
    problem = problem_of(workload)
    found = backend.named(workload, backend.bind(workload, problem)())
    references = refer(problem, log_sum=True, splits=splits)
    for which in (OUTPUT, LOG_SUM):
        fault = weigh(references[which], found[which], directions=None).reason
        assert fault is None, f"{which} of {workload.label}: {fault}"
