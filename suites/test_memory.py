"""How big is each contender? Peak memory of one warm call, against what its algorithm must hold.

S is one score matrix (batch x heads x queries x keys), O the output; both in the workload's number format.
"""

import math
from itertools import pairwise

import pytest

from attnlab.contract.workload import Workload
from attnlab.pytest_plugin.plugin import Measured

#: what a call may hold beside its arrays: workspaces, one tile a thread, Python objects
WORKSPACE = 2 * 2**20
#: score matrices and outputs held at once, at most. The naive loop holds its inputs in float64 lists.
QUADRATIC = {
    "naive_loop": (0, 24),
    "numpy_vectorized": (3.1, 1.1),
    "torch_eager": (2.1, 1.1),
    "torch_sdpa_math": (3.1, 3.1),
}
#: outputs held at once by those that never hold a score matrix
LINEAR = {
    "numpy_blocked": 4.1,
    "torch_sdpa": 4.1,
    "torch_sdpa_flash": 4.1,
    "torch_sdpa_efficient": 4.1,
    "torch_sdpa_cudnn": 4.1,
}
#: local exponent of peak memory in n; a score matrix makes it 2
LARGEST_EXPONENT = 1.15
_LENGTHS = (1024, 2048)


def test_peak(peak: Measured, contender: str, workload: Workload) -> None:
    """A call holds at least its output, and no more score matrices than its algorithm needs."""
    result = peak(contender, workload)
    scores, output = workload.score_bytes, workload.output_bytes
    found = result.peak_bytes
    assert found is not None, f"{contender}: {result.reason or 'its peak was not measured'}"
    assert found >= output, f"{contender} held {found:,} B at most, less than its output of {output:,} B"
    most = _most(result.backend, result.kernel, workload)
    if most is not None:
        assert found <= most, (
            f"{contender} held {found:,} B, at most {most:,.0f} B was expected: "
            f"{found / scores:.2f} score matrices of {scores:,} B, {found / output:.2f} outputs of {output:,} B"
        )


@pytest.mark.parametrize("length", [_LENGTHS[-1]])
@pytest.mark.parametrize("heads", [1])
def test_growth(peak: Measured, contender: str, workload: Workload) -> None:
    """Peak memory of those that promise it grows no faster than the length."""
    backend = contender.partition("[")[0].partition("#")[0]
    if backend not in LINEAR:
        pytest.skip(f"{contender} does not promise linear memory")
    at = [workload.with_(queries=length, keys=length) for length in _LENGTHS]
    results = [peak(contender, one) for one in at]
    if _holds_scores(results[-1].kernel):
        pytest.skip(f"{contender} ran {results[-1].kernel}, which holds the scores")
    sizes = [result.peak_bytes or 0 for result in results]
    for (short, long), (less, more) in zip(pairwise(_LENGTHS), pairwise(sizes), strict=True):
        exponent = math.log(more / less) / math.log(long / short)
        assert exponent <= LARGEST_EXPONENT, (
            f"{contender}: from {short} to {long} positions the peak grew from {less:,} B to {more:,} B, "
            f"as n^{exponent:.2f}; n^{LARGEST_EXPONENT} at most was expected"
        )


def _most(backend: str, kernel: str | None, workload: Workload) -> float | None:
    """The most bytes that `backend` should hold, or None for one whose algorithm is not known here."""
    if backend in LINEAR and not _holds_scores(kernel):
        return LINEAR[backend] * workload.output_bytes + WORKSPACE
    if backend not in QUADRATIC and backend not in LINEAR:
        return None
    scores, outputs = QUADRATIC.get(backend, QUADRATIC["torch_sdpa_math"])
    # NumPy has no bfloat16 and slow float16: both may be computed in float32
    widening = {"float16": 2, "bfloat16": 2}.get(workload.dtype, 1)
    return widening * (scores * workload.score_bytes + outputs * workload.output_bytes) + WORKSPACE


def _holds_scores(kernel: str | None) -> bool:
    return kernel is not None and ("math" in kernel or "softmax" in kernel)
