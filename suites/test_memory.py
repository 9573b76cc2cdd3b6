"""How much memory does each contender need? Peak memory of one warm call, compared with its backend's ``MEMORY``.

``MEMORY`` counts score matrices (batch x heads x queries x keys) and outputs, both in the workload's number format.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

import pytest

from attnlab.backends.discovery import load
from attnlab.pytest_plugin import SETTINGS, Measured
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

#: bytes that a call may hold beside its arrays: workspaces, one tile per thread, Python objects
WORKSPACE = 2 * 2**20
#: what a PyTorch kernel with a score matrix may hold, if PyTorch chose it for a backend that declares no scores
SCORES_HELD: Mapping[str, float] = {"scores": 3.1, "outputs": 3.1}
#: largest local exponent of peak memory in n; with a score matrix it would be 2
LARGEST_EXPONENT = 1.15
_LENGTHS = (1024, 2048)


def test_peak(peak: Measured, contender: str, workload: Workload, pytestconfig: pytest.Config) -> None:
    """A call holds at least its output and, in a plain forward pass, at most what its backend declares."""
    result = peak(contender, workload)
    scores, output = workload.score_bytes, workload.output_bytes
    found = result.peak_bytes
    assert found is not None, f"{contender}: {result.reason or 'its peak was not measured'}"
    assert found >= output, f"{contender} held {found:,} B at most, less than its output of {output:,} B"
    declared = _declared(result, pytestconfig)
    if declared is None or not _plain(workload):
        return
    # NumPy has no bfloat16, and its float16 is slow: both may be computed in float32
    widening = {"float16": 2, "bfloat16": 2}.get(workload.dtype, 1) if declared["scores"] else 1
    most = widening * (declared["scores"] * scores + declared["outputs"] * output) + WORKSPACE
    assert found <= most, (
        f"{contender} held {found:,} B, at most {most:,.0f} B was expected: "
        f"{found / scores:.2f} score matrices of {scores:,} B, {found / output:.2f} outputs of {output:,} B"
    )


@pytest.mark.parametrize("length", [_LENGTHS[-1]])
@pytest.mark.parametrize("heads", [1])
def test_growth(peak: Measured, contender: str, workload: Workload, pytestconfig: pytest.Config) -> None:
    """The peak memory of contenders that declare no score matrix grows linearly with the length."""
    settings = pytestconfig.stash[SETTINGS]
    peak(contender, workload)  # ends the test if it does not load: its import could end this process
    memory = load(settings.contenders[contender].backend, settings.folders).memory
    if not memory or memory["scores"]:
        pytest.skip(f"{contender} does not promise linear memory")
    at = [workload.with_(queries=length, keys=length) for length in _LENGTHS]
    results = [peak(contender, one) for one in at]
    if _holds_scores(results[-1]):
        pytest.skip(f"{contender} ran {results[-1].kernel}, which holds the scores")
    sizes = [result.peak_bytes or 0 for result in results]
    for (short, long), (less, more) in zip(pairwise(_LENGTHS), pairwise(sizes), strict=True):
        exponent = math.log(more / less) / math.log(long / short)
        assert exponent <= LARGEST_EXPONENT, (
            f"{contender}: from {short} to {long} positions the peak grew from {less:,} B to {more:,} B, "
            f"as n^{exponent:.2f}; n^{LARGEST_EXPONENT} at most was expected"
        )


def _declared(result: Result, config: pytest.Config) -> Mapping[str, float] | None:
    """What a call holds by the backend's declaration, in score matrices and outputs; None if it declares nothing."""
    memory = load(result.backend, config.stash[SETTINGS].folders).memory
    return SCORES_HELD if memory and not memory["scores"] and _holds_scores(result) else memory


def _holds_scores(result: Result) -> bool:
    return result.kernel is not None and ("math" in result.kernel or "softmax" in result.kernel)


def _plain(workload: Workload) -> bool:
    """Whether ``MEMORY`` covers the workload: a forward pass of the plain formula."""
    w = workload
    further = (w.softcap is not None, w.sinks, w.bias != "none", bool(w.mask), w.kv_heads != w.heads)
    return w.direction == "forward" and not any(further)
