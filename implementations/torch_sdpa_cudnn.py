"""scaled_dot_product_attention forced to cuDNN's fused kernel: CUDA only, float16 and bfloat16.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them; the first
call with new shapes also builds a plan, which takes long and must be warmed away. Memory: the output and a
workspace linear in n, O(n).

Forcing costs two to three microseconds a call, which are on the clock; see attnlab.libraries.torch_sdpa.
"""

from torch import Tensor

from attnlab.contract.workload import Workload
from attnlab.libraries.torch_sdpa import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_cudnn_attention"

_forced = ForcedKernel("cudnn")


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    return _forced.attend(query, key, value, causal=causal, scale=scale)


def declines(workload: Workload) -> str | None:
    """Why this kernel cannot do `workload`, or None."""
    return _forced.declines(workload)
