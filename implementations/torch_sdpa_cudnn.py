"""scaled_dot_product_attention forced to cuDNN's fused kernel: CUDA only, float16 and bfloat16.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them; the first
call with new shapes also builds a plan, which takes long and belongs to the warm-up. Memory: the output and a
workspace linear in n, O(n).

Forcing takes two to three microseconds, which are part of each timed call; see attnlab.libraries.torch_attention.
"""

from attnlab.libraries.torch_attention import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_cudnn_attention"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 0, "outputs": 4.1}

_forced = ForcedKernel("cudnn")
attend = _forced.attend
declines = _forced.declines
