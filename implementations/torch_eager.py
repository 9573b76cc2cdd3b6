"""matmul, softmax, matmul in PyTorch: attention as a person writes it.

The formula is `attnlab.libraries.torch_attention.attend`, which `torch_compile` compiles.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and two passes over the
scores between them (three where causal), each a kernel of its own that reads and writes memory. Memory: two
arrays of the size of the score matrix beside the output, O(n_q·n_k).

Scores and weights are rounded to the inputs' dtype: in float16 a score beyond 65504 makes its row NaN.
"""

from attnlab.libraries.torch_attention import attend, attend_with_log_sum

__all__ = ["attend", "attend_with_log_sum"]

LIBRARY = "torch"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 2.1, "outputs": 1.1}
