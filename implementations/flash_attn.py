"""FlashAttention-2 of Dao (2023), the package flash-attn, on CUDA.

``flash_attn.flash_attn_func`` (https://github.com/Dao-AILab/flash-attention, 2.6 or newer; arXiv:2307.08691): tiles
and online softmax in float16 and bfloat16, sums in float32, head_dim up to 256, equal value_dim, grouped heads, soft
cap, ALiBi in float32. Its arrays are (batch, length, heads, dim) with any strides, so none is copied. Its causal mask
and its window lie along the bottom-right diagonal. Top-left ones are expressed by leaving out keys that no query sees,
or by a window that reaches further to the right. A query that sees no key gets zeros, as its documentation says.

`key_lengths` go to ``flash_attn_with_kvcache``, which reads no key beyond them and has no backward pass. Its causal
mask would be aligned to each length, so it is used without one. The gradients differ from call to call, because blocks
are added in the order in which they end, unless PyTorch uses deterministic algorithms (a contender's
``deterministic=1``): `deterministic` is this setting of PyTorch. A scale of 0 or below is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations, none for hidden tiles; the backward pass takes 2.5 times as many.
Memory: the output and one number per row, O(n).
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.backends.keywords import told
from attnlab.libraries.library import positive_scale, required
from attnlab.libraries.torch_attention import KEYWORDS, Limits, Sides, refusal, tensor_of
from attnlab.workload.workload import Workload

flash_attn: Any = required("flash_attn", extra="flash-attn")

LIBRARY = "torch"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 0, "outputs": 4.1}

_LIMITS = Limits("FlashAttention")


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool = False,
    causal_bottom_right: bool = False,
    window: tuple[int, int] | None = None,
    window_bottom_right: tuple[int, int] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (batch, kv_heads, n_k, d).
    """
    query, scale = positive_scale(query, scale)
    n_q, n_k = query.shape[2], key.shape[2]
    sides = Sides.of(n_q, n_k, causal, causal_bottom_right, window, window_bottom_right)
    assert sides is not None, "declined"
    q, k, v = (array.transpose(1, 2) for array in (query, key[:, :, : sides.keys], value[:, :, : sides.keys]))
    asked: dict[str, Any] = {
        "softmax_scale": scale,
        "causal": sides.right == 0,
        "window_size": (sides.left, sides.right),
        "softcap": softcap or 0.0,
        "alibi_slopes": None
        if alibi_slopes is None
        else tensor_of(alibi_slopes, torch.float32, query.device),
    }
    if key_lengths is None:
        same = torch.are_deterministic_algorithms_enabled()
        output: Tensor = flash_attn.flash_attn_func(q, k, v, deterministic=same, **asked)
    else:
        lengths = tensor_of(key_lengths, torch.int32, query.device)
        output = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **asked)
    return output.transpose(1, 2)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why FlashAttention cannot do it, or None."""
    reason = _LIMITS.declines(workload)
    if reason:
        return reason
    if workload.key_lengths is not None:
        return _with_lengths(workload) or refusal(attend, workload)
    return _hidden(Sides.of_flags(workload, told(workload, KEYWORDS)), workload) or refusal(attend, workload)


def _with_lengths(workload: Workload) -> tuple[str, str] | None:
    if workload.backward:
        return "direction", "flash_attn_with_kvcache, which takes key lengths, has no backward pass"
    if workload.causal or workload.window or workload.mask or workload.bias != "none":
        return (
            "mask",
            "FlashAttention aligns causal masks, windows and ALiBi to each key length, not to all keys",
        )
    return None


def _hidden(sides: Sides | None, workload: Workload) -> tuple[str, str] | None:
    if sides is None:
        return "mask", "its band of keys cannot be told along FlashAttention's bottom-right diagonal"
    if sides.right >= sides.keys:  # mha_fwd in csrc/flash_attn/flash_api.cpp
        return "window", f"FlashAttention takes a window that reaches {sides.keys} keys or more for no window"
    if sides.keys < workload.keys and workload.bias != "none":
        return "bias", "FlashAttention counts ALiBi from the last key that it is given, here not the last one"
    return None
