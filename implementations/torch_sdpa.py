"""PyTorch's scaled_dot_product_attention, with the kernel that its dispatcher picks.

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves up to half of them in the fused kernels.
Memory: the output and workspace linear in n if a fused kernel runs. If none fits (on the CPU when value_dim
differs from head_dim, on CUDA in float64) the math kernel runs, O(n_q·n_k). Which kernel ran is attested with
the result, and the torch_sdpa_* backends force each.

`is_causal` is top-left in PyTorch for all lengths. Any other mask is passed as an array, together with a bias; the
kernels read this array in addition. A scale of 0 or below is folded into the query, because the CPU flash kernel would
return NaN for it under a causal mask.

If a score exceeds the range of float32, the CPU flash kernel returns 0 in float16 and bfloat16, while the other kernels
return NaN (PyTorch 2.13): the output does not show such an overflow.
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.libraries.library import positive_scale

LIBRARY = "torch"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 0, "outputs": 4.1}


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask broadcastable to
    (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=causal, scale=scale, enable_gqa=enable_gqa
    )
