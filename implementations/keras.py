"""Keras's dot_product_attention on its torch backend.

``keras.ops.dot_product_attention`` (https://keras.io/api/ops/nn/) needs arrays as (batch, length, heads, dim), and
transposes them back to call PyTorch's ``scaled_dot_product_attention``. Which of its kernels ran is attested. A boolean
mask is converted to numbers that are added, a large negative one for hidden keys, and grouped heads are repeated.

`causal` is top-left. A query that sees no key gets the mean of all values, which attnlab overwrites with zeros. The
function's soft cap (``attn_logits_soft_cap``) exists on TPUs only. A scale of 0 or below is folded into the query,
because PyTorch's CPU kernel would return NaN for it under a causal mask. If a score exceeds the range of float32, that
kernel returns 0 in float16 and bfloat16, while others return NaN (PyTorch 2.13).

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves up to half of them in a fused kernel. Memory: the output,
and copies of arrays that are not contiguous; O(n_q·n_k) with a mask, or if no fused kernel fits.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.libraries.library import positive_scale
from attnlab.libraries.torch_library import Keras

keras = Keras.opened()

LIBRARY = "keras"


def declines(workload: Any) -> tuple[str, str] | None:
    """Declines float64, which Keras's rules of promotion do not keep."""
    return ("dtype", "Keras computes float64 in float32") if workload.dtype == "float64" else None


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
    given = {}
    if attn_mask is not None:
        given["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
    arrays = (array.transpose(1, 2) for array in (query, key, value))
    output: Tensor = keras.ops.dot_product_attention(*arrays, scale=scale, is_causal=causal, **given)
    return output.transpose(1, 2)
