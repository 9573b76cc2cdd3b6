"""Every backend has a block around it, however x is projected, whatever its library."""

from __future__ import annotations

import pytest
from every import every

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.gate import race_check
from attnlab.problem.block import PROJECTIONS
from attnlab.problem.workload import Workload

BLOCKS = {
    "self-attention": Workload(batch=2, heads=4, queries=12, keys=12, d_model=32),
    "rotary, causal, a memory": Workload(
        heads=4, queries=5, keys=12, d_model=32, rotary=True, causal="top_left"
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", every())
def test_a_block_around_every_backend_is_right(name: str, block: str, dtype: str) -> None:
    """It is declined only for what its core declines, or because it computes blocks in one piece."""
    workload = BLOCKS[block].with_(dtype=dtype)
    try:
        backend = load(name)
        reason = backend.declines(workload)
    except Unavailable as missing:
        pytest.skip(str(missing))
    if reason:
        assert backend.block is not None or reason == backend.declines(workload.core)
        pytest.skip(reason)
    rows = list(range(workload.queries))
    for projection in (None,) if backend.block is not None else PROJECTIONS:
        answer = backend.named(workload, backend.bind(workload, projection=projection)())["output"]
        judged = race_check.judge(workload, rows, answer)
        assert judged.passed, f"{projection}: {judged.reason}"
