"""scaled_dot_product_attention forced to its memory-efficient (CUTLASS) kernel: CUDA only.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them. Memory:
the output, and a workspace linear in n, O(n). It has float32, unlike flash and cuDNN, and value_dim may
differ from head_dim. Its causal mask is top-left.

Forcing costs two to three microseconds a call, which are on the clock; see attnlab.libraries.torch_sdpa.
"""

from torch import Tensor

from attnlab.contract.workload import Workload
from attnlab.libraries.torch_sdpa import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_efficient_attention"

_forced = ForcedKernel("efficient")


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    return _forced.attend(query, key, value, causal=causal, scale=scale)


def declines(workload: Workload) -> str | None:
    """Why this kernel cannot do `workload`, or None."""
    return _forced.declines(workload)
