"""scaled_dot_product_attention forced to its flash kernel: tiles and online softmax, CPU and CUDA.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them. Memory:
the output, one number a row and a workspace that does not grow with n, O(n).

On CUDA it computes in float16 and bfloat16 only and takes a causal mask only where queries and keys are as
many, because its own mask is aligned bottom-right; both are declined.

Forcing costs two to three microseconds a call, which are on the clock; see attnlab.libraries.torch_sdpa.
"""

from attnlab.libraries.torch_sdpa import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_flash_attention"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 0, "outputs": 4.1}

_forced = ForcedKernel("flash")
attend = _forced.attend
declines = _forced.declines
