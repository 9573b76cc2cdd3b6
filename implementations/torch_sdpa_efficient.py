"""scaled_dot_product_attention forced to its memory-efficient (CUTLASS) kernel: CUDA only.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them. Memory:
the output, and a workspace linear in n, O(n). It has float32, unlike flash and cuDNN, and value_dim may
differ from head_dim. Its causal mask is top-left.

Forcing takes two to three microseconds, which are part of each timed call; see attnlab.libraries.torch_attention.
"""

from attnlab.libraries.torch_attention import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_efficient_attention"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 0, "outputs": 4.1}

_forced = ForcedKernel("efficient")
attend = _forced.attend
declines = _forced.declines
