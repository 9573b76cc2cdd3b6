"""PyTorch's scaled_dot_product_attention, with the kernel that its dispatcher picks.

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves up to half of them in the fused kernels.
Memory: the output and workspace linear in n where a fused kernel runs; where none fits (on the CPU when
value_dim differs from head_dim, on CUDA in float64) the math kernel runs, O(n_q·n_k). Which one ran is
attested with the result, and the torch_sdpa_* backends force each.

`is_causal` is top-left in PyTorch whatever the lengths. A scale of 0 or below is folded into the query,
because the CPU flash kernel would answer NaN to it under a causal mask.
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.libraries.torch_sdpa import LEAST_SCALE, positive_scale

LIBRARY = "torch"


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    if scale < LEAST_SCALE:
        query, scale = positive_scale(query, scale)
    return scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
