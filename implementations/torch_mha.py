"""torch.nn.MultiheadAttention, the whole multi-head block, with its fast path or without.

https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in evaluation mode, batch_first,
without the weights (need_weights False). For self-attention with an even number of heads and no additive bias it takes
a path of its own, the operator _native_multi_head_attention; `fastpath=off` keeps it from that, and everything else
goes without: a packed projection, scaled_dot_product_attention, and a projection. Which one ran is attested with the
result.

Its mask is True where a key is *hidden*, the opposite of `scaled_dot_product_attention`; a query that sees no key
comes out as NaN, and so is declined. It has no grouped heads, soft cap or sinks, and one scale.

Time: the four projections, 8·b·n·d_model² floating-point operations for self-attention, and 4·b·n_q·n_k·d_model of the
core. Memory: on the CPU the fast path holds a score matrix, O(n_q·n_k); without it the output and arrays like it,
O(n).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = "torch"
SETTINGS = {"fastpath": ("on", "off")}

_fastpath = True


def configure(fastpath: str) -> None:
    """Whether it may take its fast path."""
    global _fastpath
    _fastpath = fastpath == "on"


def declines(workload: Any) -> tuple[str, str] | None:
    """One width for all heads, and at least one key for every query."""
    if (workload.heads * workload.head_dim, workload.value_dim) != (workload.d_model, workload.head_dim):
        return "value_dim", "nn.MultiheadAttention divides d_model evenly among its heads"
    if workload.masked.empty_rows(workload.shape) is not None:
        return "mask", "a query sees no key, and nn.MultiheadAttention answers NaN to it"
    return None


def block(
    parameters: dict[str, Tensor],
    heads: int,
    *,
    causal: bool,
    attn_mask: Tensor | None = None,
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The module with these parameters, as a function of x (batch, n_q, d_model) and memory (batch, n_k, d_model) or
    None.

    attn_mask : broadcastable to (batch, heads, n_q, n_k), boolean (True sees) or numbers that are added to the scores.
    """
    weight = parameters["out_proj.weight"]
    module = torch.nn.MultiheadAttention(
        weight.shape[0], heads, batch_first=True, device=weight.device, dtype=weight.dtype
    )
    module.load_state_dict(parameters)
    module.requires_grad_(False).eval()
    fastpath, masks = _fastpath, _Masks(heads, causal, attn_mask)

    def compute(x: Tensor, memory: Tensor | None) -> Tensor:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        tokens = x if memory is None else memory
        mask = masks.of(x, tokens)
        output: Tensor = module(x, tokens, tokens, need_weights=False, attn_mask=mask, is_causal=causal)[0]
        return output

    return compute


class _Masks:
    """The mask as the module takes it, made once: (n_q, n_k) where one serves all, else (batch · heads, n_q, n_k)."""

    def __init__(self, heads: int, causal: bool, attn_mask: Tensor | None) -> None:
        self._heads, self._causal, self._given = heads, causal, attn_mask
        self._made: Tensor | None = None

    def of(self, x: Tensor, tokens: Tensor) -> Tensor | None:
        """For these tokens; the causal one too, which the module wants beside its hint."""
        if self._made is None and (self._causal or self._given is not None):
            self._made = self._make(x.shape[0], x.shape[1], tokens.shape[1], x.device)
        return self._made

    def _make(self, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
        if self._given is None:
            return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1)
        hidden = ~self._given if self._given.dtype == torch.bool else self._given
        if hidden.shape[:2] == (1, 1):
            return hidden[0, 0].expand(queries, keys).contiguous()
        return hidden.expand(batch, self._heads, queries, keys).reshape(-1, queries, keys)
