"""Parts of the keys, merged by their ln Z, give what whole keys give: however many there are."""

from __future__ import annotations

import pytest
from every import here
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import workloads

from attnlab.correctness.evidence import weigh
from attnlab.correctness.reference import refer
from attnlab.workload.drawing import problem_of
from attnlab.workload.vocabulary import CONTIGUOUS, LOG_SUM, OUTPUT
from attnlab.workload.workload import Workload

GIVING = ["naive_loop", "numpy_blocked", "torch_eager", "torch_sdpa_flash"]


ASKED = {"device": "cpu", "storage": CONTIGUOUS, "direction": "forward_with_log_sum", "scale": None}
#: cut into parts of its keys, of a single key at least
CUT = st.builds(
    lambda one, splits: one.with_(**ASKED, distribution="logit_std_8", splits=min(splits, one.keys)),
    workloads(12),
    st.integers(1, 14),
)


@pytest.mark.parametrize("name", GIVING)
@given(workload=CUT)
@settings(max_examples=20, deadline=None)
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
