"""Keras's dot_product_attention on its torch backend.

``keras.ops.dot_product_attention`` (https://keras.io/api/ops/nn/) wants arrays as (batch, length, heads, dim), and
transposes them back to call PyTorch's ``scaled_dot_product_attention``: which kernel of it ran is attested. A boolean
mask is turned into numbers to add, a large negative one where nothing is seen, and grouped heads are repeated.

`causal` is top-left. A query that sees no key gets the mean of all values, which the harness overwrites with zeros. The
function's soft cap (``attn_logits_soft_cap``) is there on TPUs only. A scale of 0 or below is folded into the query,
because PyTorch's CPU kernel would answer NaN to it under a causal mask. If a score is beyond the numbers of float32,
that kernel answers 0 in float16 and bfloat16, in which others answer NaN (PyTorch 2.13).

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves up to half of them in a fused kernel. Memory: the output,
and copies of what does not lie contiguously; O(n_q·n_k) with a mask and where no fused kernel fits.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.libraries.library import positive_scale
from attnlab.libraries.torch_library import Keras

keras = Keras.opened()

LIBRARY = "keras"


def declines(workload: Any) -> tuple[str, str] | None:
    """float64, which Keras's rules of promotion do not keep."""
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
