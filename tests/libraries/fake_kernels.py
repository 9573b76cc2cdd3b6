"""Stand-ins for packages with CUDA kernels: each computes on the CPU what its documentation says, in float32."""

from __future__ import annotations

import itertools
import math
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from written.any_mask_in_one_array import attend

HALVES = (torch.float16, torch.bfloat16)


def module(name: str, **members: Any) -> ModuleType:
    """An importable module of this name."""
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, loader=None)
    vars(made).update(members)
    return made


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor | None, bias: Any = None, cap: float = 0.0
) -> Tensor:
    """Attention in float32, (batch, heads, n_q, d), with grouped heads; 0 for a query that sees no key."""
    return attend(q, k, v, scale=scale, mask=seen, bias=bias, softcap=cap or None, enable_gqa=True)


def distances(n_q: int, n_k: int) -> Tensor:
    """j − (i + n_k − n_q): how far a key lies after the bottom-right diagonal."""
    return torch.arange(n_k) - (torch.arange(n_q)[:, None] + n_k - n_q)


def local(n_q: int, n_k: int, left: int, right: int) -> Tensor:
    """A window along the bottom-right diagonal; a side of n_k or more is no limit (mha_fwd in flash_api.cpp)."""
    seen, distance = torch.ones(n_q, n_k, dtype=torch.bool), distances(n_q, n_k)
    if 0 <= left < n_k:
        seen &= distance >= -left
    if 0 <= right < n_k:
        seen &= distance <= right
    return seen


def flash_attn() -> ModuleType:
    """flash_attn 2.8: (batch, length, heads, dim)."""

    known = {"softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic"}

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, lengths: Any = None, **asked: Any) -> Tensor:
        assert {"softmax_scale", "window_size"} <= {*asked} <= known
        assert q.dtype == k.dtype == v.dtype and q.dtype in HALVES
        assert q.shape[3] == k.shape[3] == v.shape[3] <= 256
        n_q, n_k, (left, right) = q.shape[1], k.shape[1], asked["window_size"]
        seen = local(n_q, n_k, left, 0 if asked["causal"] else right)[None, None]
        if lengths is not None:
            assert lengths.dtype == torch.int32 and not asked["causal"] and (left, right) == (-1, -1)
            seen = seen & (torch.arange(n_k) < lengths[:, None, None, None])
        bias, slopes = None, asked.get("alibi_slopes")
        if slopes is not None:
            assert slopes.dtype == torch.float32 and slopes.shape == (q.shape[2],)
            bias = -slopes[:, None, None] * distances(n_q, n_k).abs()
        wide = [one.float().transpose(1, 2) for one in (q, k, v)]
        output = attention(wide[0], wide[1], wide[2], asked["softmax_scale"], seen, bias, asked["softcap"])
        return output.transpose(1, 2).to(q.dtype)

    def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, **asked: Any
    ) -> Tensor:
        assert not q.requires_grad
        return flash_attn_func(q, k_cache, v_cache, lengths=cache_seqlens, **asked)

    return module(
        "flash_attn",
        __version__="2.8.3",
        flash_attn_func=flash_attn_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )


def sageattention() -> ModuleType:
    """sageattention 2: (batch, heads, length, dim) where the layout is HND."""

    def sageattn(q: Tensor, k: Tensor, v: Tensor, **asked: Any) -> Tensor:
        assert {*asked} == {"tensor_layout", "is_causal", "sm_scale"} and asked["tensor_layout"] == "HND"
        assert q.dtype in HALVES and q.shape[3] == k.shape[3] == v.shape[3] <= 128
        assert all(one.stride(-1) == 1 for one in (q, k, v)), "Last dim of qkv must be contiguous."
        assert q.shape[2] == k.shape[2] or not asked["is_causal"]
        seen = local(q.shape[2], k.shape[2], -1, 0) if asked["is_causal"] else None
        return attention(q.float(), k.float(), v.float(), asked["sm_scale"], seen).to(q.dtype)

    return module("sageattention", sageattn=sageattn)


def flashinfer() -> ModuleType:
    """flashinfer 0.6: sequences one after another, (tokens, heads, dim)."""

    def sequence(q: Tensor, k: Tensor, v: Tensor, asked: dict[str, Any]) -> Tensor:
        seen = distances(len(q), len(k)) >= -asked["window_left"]
        seen |= torch.tensor(asked["window_left"] < 0)
        if asked.get("causal"):
            seen &= distances(len(q), len(k)) <= 0
        wide = [one.float().transpose(0, 1)[None] for one in (q, k, v)]
        cap = asked["logits_soft_cap"] or 0.0
        output = attention(wide[0], wide[1], wide[2], asked["sm_scale"], seen, cap=cap)
        return output[0].transpose(0, 1).to(q.dtype)

    class BatchPrefillWithRaggedKVCacheWrapper:
        def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
            assert kv_layout == "NHD" and float_workspace_buffer.dtype == torch.uint8
            self.asked: dict[str, Any] = {}

        def plan(
            self,
            qo_indptr: Tensor,
            kv_indptr: Tensor,
            num_qo_heads: int,
            num_kv_heads: int,
            head_dim_qk: int,
            head_dim_vo: int | None = None,
            **asked: Any,
        ) -> None:
            assert qo_indptr.dtype == kv_indptr.dtype == torch.int32
            assert asked["q_data_type"] == asked["kv_data_type"] and asked["q_data_type"] in HALVES
            self.starts, self.asked = (qo_indptr.tolist(), kv_indptr.tolist()), asked
            heads, dims = (num_qo_heads, num_kv_heads, num_kv_heads), (head_dim_qk, head_dim_qk, head_dim_vo)
            self.shapes = tuple(zip(heads, dims, strict=True))

        def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows = (self.starts[0][-1], self.starts[1][-1], self.starts[1][-1])
            for array, shape, count in zip((q, k, v), self.shapes, rows, strict=True):
                assert tuple(array.shape) == (count, *shape) and array.dtype == self.asked["q_data_type"]
            of_q, of_k = ([slice(*pair) for pair in itertools.pairwise(one)] for one in self.starts)
            parts = zip(of_q, of_k, strict=True)
            return torch.cat([sequence(q[a], k[b], v[b], self.asked) for a, b in parts])

    return module(
        "flashinfer",
        __version__="0.6.1",
        BatchPrefillWithRaggedKVCacheWrapper=BatchPrefillWithRaggedKVCacheWrapper,
    )


def xformers() -> dict[str, ModuleType]:
    """xformers 0.0.33: (batch, length, heads, dim), or (batch, length, groups, heads, dim) without broadcasting."""

    class LowerTriangularMask:
        right, shifted = 0, False

    class LowerTriangularFromBottomRightMask(LowerTriangularMask):
        shifted = True

    class LocalAttentionFromBottomRightMask:
        def __init__(self, window_left: int, window_right: int) -> None:
            assert window_left >= 0 and window_right >= 0
            self.sides = window_left, window_right

    def memory_efficient_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Any = None,
        p: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        assert query.ndim == key.ndim == value.ndim in (4, 5) and scale is not None
        lead, n_q, n_k = query.shape[2:-1], query.shape[1], key.shape[1]
        assert key.shape[2:-1] == value.shape[2:-1] == lead, "We don't support broadcasting"
        multiple = 4 if query.dtype == torch.float32 else 8
        assert query.shape[-1] % multiple == value.shape[-1] % multiple == 0
        seen, bias = None, None
        if isinstance(attn_bias, Tensor):
            assert attn_bias.shape == (query.shape[0], *lead, n_q, n_k) and attn_bias.dtype == query.dtype
            alignment = 128 // torch.finfo(attn_bias.dtype).bits
            assert all(stride % alignment == 0 for stride in attn_bias.stride()[:-1])
            bias = attn_bias.float().reshape(query.shape[0], -1, n_q, n_k)
            seen, bias = bias > -math.inf, bias.masked_fill(bias == -math.inf, 0.0)
        elif isinstance(attn_bias, LocalAttentionFromBottomRightMask):
            assert query.dtype in HALVES
            seen = local(n_q, n_k, *attn_bias.sides)
        elif attn_bias is not None:
            diagonal = n_k - n_q if attn_bias.shifted else 0
            seen = torch.ones(n_q, n_k, dtype=torch.bool).tril(diagonal)
        wide = [one.flatten(2, -2).float().transpose(1, 2) for one in (query, key, value)]
        output = attention(wide[0], wide[1], wide[2], scale, seen, bias).transpose(1, 2).unflatten(2, lead)
        return output.to(query.dtype)

    masks = module(
        "xformers.ops.fmha.attn_bias",
        LowerTriangularMask=LowerTriangularMask,
        LowerTriangularFromBottomRightMask=LowerTriangularFromBottomRightMask,
        LocalAttentionFromBottomRightMask=LocalAttentionFromBottomRightMask,
    )
    ops = module("xformers.ops", memory_efficient_attention=memory_efficient_attention)
    fmha = module("xformers.ops.fmha", attn_bias=masks)
    whole = module("xformers", __version__="0.0.33", ops=ops)
    return {one.__name__: one for one in (whole, ops, fmha, masks)}
