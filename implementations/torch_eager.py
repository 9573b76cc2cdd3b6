"""matmul, softmax, matmul in PyTorch: attention as a person writes it.

The formula is `attnlab.libraries.torch_attention.attend`, which `torch_compile` compiles.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and two passes over the
scores between them (three if causal), each a separate kernel that reads and writes memory. Memory: two
arrays of the size of the score matrix beside the output, O(n_q·n_k).

Scores and weights are rounded to the inputs' dtype: in float16 a score beyond 65504 makes its row NaN. A soft cap
beyond the range of the dtype is declined: s/c would be rounded to 0.
"""

from attnlab.libraries.torch_attention import attend, attend_with_log_sum
from attnlab.workload.number_formats import float_format
from attnlab.workload.workload import Workload

__all__ = ["attend", "attend_with_log_sum"]

LIBRARY = "torch"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 2.1, "outputs": 1.1}


def declines(workload: Workload) -> tuple[str, str] | None:
    """Declines a soft cap that is beyond the range of the format."""
    beyond = workload.softcap is not None and workload.softcap > float_format(workload.dtype).largest
    return ("softcap", f"{workload.dtype} holds no cap of {workload.softcap:g}") if beyond else None
