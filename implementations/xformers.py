"""xFormers' memory_efficient_attention, with the kernel that its dispatcher picks, on CUDA.

``xformers.ops.memory_efficient_attention`` (https://github.com/facebookresearch/xformers, 0.0.28 or newer): flash
kernels in float16 and bfloat16, CUTLASS kernels also in float32 and if a bias is an array; which kernel ran is
attested. Its arrays are (batch, length, heads, dim), copied if their last axis has gaps; head_dim and value_dim are
multiples of 8, in float32 of 4. Causal masks of both alignments are its own masks (LowerTriangularMask,
LowerTriangularFromBottomRightMask), and so is a window, in half precision only. Any other mask and a bias are one
array in the inputs' format, with aligned rows; it is made in the first call. Grouped heads are passed as a separate
axis, along which key and value are repeated without a copy. A scale of 0 or below is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations; the backward pass 2.5 times as many. Memory: the output and one number
per row, O(n); a mask or a bias that is an array takes its size once more.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.backends.keywords import told
from attnlab.libraries.library import Made, positive_scale, required
from attnlab.libraries.torch_attention import HALVES, KEYWORDS, Limits, Sides, dense_rows, refusal
from attnlab.workload.workload import Workload

required("xformers", extra="xformers")
ops: Any = required("xformers.ops", extra="xformers")
masks: Any = required("xformers.ops.fmha.attn_bias", extra="xformers")

LIBRARY = "torch"
MEMORY = {"scores": 1.1, "outputs": 4.1}

_LIMITS = Limits("xFormers", dtypes=(*HALVES, "float32"), largest_head_dim=65536, equal_dims=False)
#: CUTLASS needs every row of a bias aligned to this many numbers
_ALIGNED = 8


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
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask broadcastable to
    (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)
    n_q, n_k, of_keys = query.shape[2], key.shape[2], key.shape[1]
    bias: Any = None
    if attn_mask is not None:
        bias = _BIAS(attn_mask, query.dtype, n_q, n_k).expand(*query.shape[:3], n_k)
        bias = _in_groups(bias, of_keys) if enable_gqa else bias
    elif window or window_bottom_right:
        sides = Sides.of(n_q, n_k, causal, causal_bottom_right, window, window_bottom_right)
        assert sides is not None, "declined"
        key, value = key[:, :, : sides.keys], value[:, :, : sides.keys]
        bias = _window(sides, n_q)
    elif causal:
        bias = masks.LowerTriangularMask()
    elif causal_bottom_right:
        bias = masks.LowerTriangularFromBottomRightMask()
    q, k, v = (array.transpose(1, 2) for array in dense_rows(query, key, value))
    if enable_gqa:
        q = q.unflatten(2, (of_keys, -1))
        k, v = (one.unsqueeze(3).expand(-1, -1, -1, q.shape[3], -1) for one in (k, v))
    output: Tensor = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=scale)
    return (output.flatten(2, 3) if enable_gqa else output).transpose(1, 2)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why xFormers cannot do it, or None."""
    reason = _LIMITS.declines(workload)
    if reason:
        return reason
    multiple = 4 if workload.dtype == "float32" else 8
    if workload.head_dim % multiple or workload.value_dim % multiple:
        return (
            "head_dim",
            f"xFormers needs head_dim and value_dim to be multiples of {multiple} in {workload.dtype}, "
            f"got {workload.head_dim} and {workload.value_dim}",
        )
    flags = told(workload, KEYWORDS)
    if workload.bias == "none" and {"window", "window_bottom_right"} & set(flags or {}):
        reason = _windows(Sides.of_flags(workload, flags), workload)
    return reason or refusal(attend, workload)


def _windows(sides: Sides | None, workload: Workload) -> tuple[str, str] | None:
    if workload.dtype not in HALVES:
        return "window", "xFormers' windows are in its flash kernels alone, which have no float32"
    if sides is None:
        return "mask", "its band of keys cannot be told along xFormers' bottom-right diagonal"
    if sides.right >= sides.keys:  # its flash kernels are FlashAttention's
        return "window", f"xFormers takes a window that reaches {sides.keys} keys or more for no window"
    return None


def _window(sides: Sides, n_q: int) -> Any:
    """xFormers' own mask; it has no open side, so an open side becomes one that reaches over all keys."""
    whole = max(sides.keys, n_q)
    left, right = (whole if side < 0 else side for side in sides[1:])
    return masks.LocalAttentionFromBottomRightMask(window_left=left, window_right=right)


def _made(attn_mask: Tensor, dtype: torch.dtype, n_q: int, n_k: int) -> Tensor:
    """The numbers to add, (batches, heads, n_q, n_k), each row aligned: a view of longer rows."""
    rows = torch.zeros(
        *attn_mask.shape[:2], n_q, -(-n_k // _ALIGNED) * _ALIGNED, dtype=dtype, device=attn_mask.device
    )[..., :n_k]
    if attn_mask.dtype == torch.bool:
        return rows.masked_fill_(~attn_mask, float("-inf"))
    return rows.copy_(attn_mask)


_BIAS = Made(_made)


def _in_groups(bias: Tensor, groups: int) -> Tensor:
    """(batch, groups, heads of a group, n_q, n_k), with the old strides: unflatten loses the stride of a single row."""
    batch, heads, *rest = bias.shape
    outside, of_head, *within = bias.stride()
    group = heads // groups
    return bias.as_strided((batch, groups, group, *rest), (outside, of_head * group, of_head, *within))
