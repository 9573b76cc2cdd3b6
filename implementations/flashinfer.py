"""FlashInfer's attention over a batch of sequences, by its wrapper for prefill, on CUDA.

``flashinfer.BatchPrefillWithRaggedKVCacheWrapper`` (https://github.com/flashinfer-ai/flashinfer, 0.2 or newer;
arXiv:2501.01005): the kernels that serving engines prefill with, in float16 and bfloat16, sums in float32, head_dim 64,
128, 256, or 192 with value_dim 128, grouped heads, soft cap. It has no backward pass.

It plans a batch once, on the host, and can then compute it many times. `prepare` makes the plan, and compiles the
kernel that it needs. Its arrays are (tokens of all sequences, heads, dim); `prepare` makes this layout, outside the
timed call. Its causal mask and the left side of its window lie along the bottom-right diagonal, and a window always
ends at this diagonal on the right. Top-left ones are expressed by leaving out keys that no query sees, which copies the
other keys in every call if there are several sequences. A scale of 0 or below is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations, none for hidden tiles. Memory: the output and a workspace of 128 MiB,
which is allocated by `prepare`, O(n).
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.backends.keywords import told
from attnlab.libraries.library import positive_scale, required
from attnlab.libraries.torch_attention import KEYWORDS, Limits, Sides, refusal
from attnlab.workload.workload import Workload

flashinfer: Any = required("flashinfer", extra="flashinfer")

LIBRARY = "torch"
MEMORY = {"scores": 0, "outputs": 4.1}

_LIMITS = Limits("FlashInfer", equal_dims=False, backward=False)
_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256))
_WORKSPACE_BYTES = 128 * 2**20


class Form(NamedTuple):
    """All that a plan depends on."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    sides: Sides
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    softcap: float | None


def prepare(workload: Workload, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """The arrays, in memory as (batch, length, heads, dim), and the plan for them."""
    _, scale = positive_scale(query, workload.scale)
    _planned(_form(query, key, value, scale, workload.softcap, **(told(workload, KEYWORDS) or {})))
    return tuple(array.transpose(1, 2).contiguous().transpose(1, 2) for array in (query, key, value))


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
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ)) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (batch, kv_heads, n_k, d_v).
    """
    query, scale = positive_scale(query, scale)
    form = _form(query, key, value, scale, softcap, causal, causal_bottom_right, window, window_bottom_right)
    keys = form.sides.keys
    q, k, v = (array.transpose(1, 2).flatten(0, 1) for array in (query, key[:, :, :keys], value[:, :, :keys]))
    output: Tensor = _planned(form).run(q, k, v)
    return output.view(form.batch, form.queries, form.heads, form.value_dim).transpose(1, 2)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why FlashInfer cannot do it, or None."""
    reason = _LIMITS.declines(workload)
    if reason:
        return reason
    dims = (workload.head_dim, workload.value_dim)
    if dims not in _DIMS:
        known = ", ".join("/".join(map(str, sorted(set(one), reverse=True))) for one in _DIMS)
        return (
            "head_dim",
            f"FlashInfer's kernels are made for head_dim {known}, got {'/'.join(map(str, dims))}",
        )
    sides = Sides.of_flags(workload, told(workload, KEYWORDS))
    if sides is None or sides.right > 0:
        return (
            "mask",
            "its band of keys cannot be told by FlashInfer's bottom-right causal mask and left window",
        )
    return refusal(attend, workload)


def _form(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None, *flags: Any, **named: Any
) -> Form:
    batch, heads, queries, head_dim = query.shape
    sides = Sides.of(queries, key.shape[2], *flags, **named)
    assert sides is not None, "declined"
    dims = (head_dim, value.shape[3])
    return Form(batch, heads, key.shape[1], queries, sides, *dims, query.dtype, query.device, scale, softcap)


@functools.lru_cache(maxsize=16)
def _planned(form: Form) -> Any:
    """The wrapper that computes `form`, planned now."""
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(form.device), kv_layout="NHD")
    starts = torch.arange(form.batch + 1, dtype=torch.int32, device=form.device)
    wrapper.plan(
        starts * form.queries,
        starts * form.sides.keys,
        form.heads,
        form.kv_heads,
        form.head_dim,
        head_dim_vo=form.value_dim,
        causal=form.sides.right == 0,
        window_left=form.sides.left,
        logits_soft_cap=form.softcap,
        sm_scale=form.scale,
        q_data_type=form.dtype,
        kv_data_type=form.dtype,
    )
    return wrapper


@functools.lru_cache(maxsize=1)
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
