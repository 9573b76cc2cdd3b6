"""scaled_dot_product_attention forced to its math kernel: unfused, the one that can do everything.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, with passes over the scores
between them as in the eager formula. Memory: two arrays of the size of the score matrix and scaled
copies of query and key, in float32 even for float16 and bfloat16 inputs, O(n_q·n_k).

Forcing costs two to three microseconds a call, which are on the clock; see attnlab.libraries.torch_sdpa.
"""

from torch import Tensor

from attnlab.contract.workload import Workload
from attnlab.libraries.torch_sdpa import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_attention_math"

_forced = ForcedKernel("math")


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    return _forced.attend(query, key, value, causal=causal, scale=scale)


def declines(workload: Workload) -> str | None:
    """Why this kernel cannot do `workload`, or None."""
    return _forced.declines(workload)
