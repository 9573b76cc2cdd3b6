"""Parts of the keys, merged by their ln Z, give what whole keys give: however many there are."""

from __future__ import annotations

import pytest
from every import here
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.gate.evidence import weigh
from attnlab.gate.reference import refer
from attnlab.problem.inputs import problem_of
from attnlab.problem.vocabulary import LOG_SUM, OUTPUT
from attnlab.problem.workload import Workload

GIVING = ["naive_loop", "numpy_blocked", "torch_eager", "torch_sdpa_flash"]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any small workload of one of the masks, cut into parts of its keys, a single one at most."""
    batch, keys = draw(st.integers(1, 2)), draw(st.integers(1, 12))
    return Workload(
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
        direction="forward_with_log_sum",
        splits=draw(st.integers(1, keys)),
    )


@pytest.mark.parametrize("name", GIVING)
@given(workload=workloads())
@settings(max_examples=12, deadline=None)
def test_backends_give_ln_z_and_merge_within_the_budget(name: str, workload: Workload) -> None:
    """Of any workload that they do not decline, in up to as many parts as there are keys."""
    backend = here(name)
    if backend.declines(workload):
        return
    problem = problem_of(workload)
    found = backend.named(workload, backend.bind(workload, problem)())
    references = refer(problem, log_sum=True, splits=workload.splits)
    for which in (OUTPUT, LOG_SUM):
        fault = weigh(references[which], found[which], directions=None).reason
        assert fault is None, f"{which} of {workload.label}: {fault}"
