"""scaled_dot_product_attention forced to its flash kernel: tiles and online softmax, CPU and CUDA.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them. Memory:
the output, one number a row and a workspace that does not grow with n, O(n).

On CUDA it computes in float16 and bfloat16 only and takes a causal mask only where queries and keys are as
many, because its own mask is aligned bottom-right; both are declined.

Forcing costs two to three microseconds a call, which are on the clock; see attnlab.libraries.torch_sdpa.
"""

from torch import Tensor

from attnlab.contract.workload import Workload
from attnlab.libraries.torch_sdpa import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_flash_attention"

_forced = ForcedKernel("flash")


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    return _forced.attend(query, key, value, causal=causal, scale=scale)


def declines(workload: Workload) -> str | None:
    """Why this kernel cannot do `workload`, or None."""
    return _forced.declines(workload)
