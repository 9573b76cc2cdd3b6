"""The multi-head block: is it right with every projection, and how long does a call take? The default width is BERT's.

`pytest suites/test_block.py --backends 'torch_sdpa,torch_sdpa[projection=loop],torch_mha' --heads 12 --lengths 128,512`
"""

import pytest

from attnlab.pytest_plugin import Answered, Interleaved
from attnlab.workload.workload import Workload

#: width of BERT base, whose 12 heads have 64 components each
D_MODEL = 768


@pytest.fixture
def block(workload: Workload) -> Workload:
    """The workload of the options as a block. Its width is 768 unless the options name a d_model."""
    if workload.d_model is not None:
        return workload
    try:
        return workload.with_(d_model=D_MODEL, head_dim=None, value_dim=None, scale=None)
    except ValueError as fault:
        pytest.skip(f"no block of width {D_MODEL}: {fault}")


def test_block_is_right(answered: Answered, contender: str, block: Workload) -> None:
    """With any projection, the errors are those of rounding."""
    assert answered(contender, block).passed


def test_block_speed(interleaved: Interleaved, contender: str, block: Workload) -> None:
    """Time a call of the whole block. Fails if the contender is wrong, crashes or hangs."""
    interleaved(contender, block)
