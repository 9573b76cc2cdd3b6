"""scaled_dot_product_attention forced to its math kernel: unfused, the one that can do everything.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, with passes over the scores
between them as in the eager formula. Memory: two arrays of the size of the score matrix and scaled
copies of query and key, in float32 even for float16 and bfloat16 inputs, O(n_q·n_k).

Forcing takes two to three microseconds, which are part of each timed call; see attnlab.libraries.torch_attention.
"""

from attnlab.libraries.torch_attention import ForcedKernel

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_attention_math"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 3.1, "outputs": 3.1}

_forced = ForcedKernel("math")
attend = _forced.attend
declines = _forced.declines
