"""torch.nn.MultiheadAttention, the whole multi-head block, with its fast path or without.

https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html, in evaluation mode, batch_first,
without the weights (need_weights False). For self-attention with an even number of heads and no additive bias it takes
its fast path, the operator _native_multi_head_attention, unless `fastpath=off` is set. Everything else is computed
without it: a packed projection, scaled_dot_product_attention, and a projection. Which path ran is attested with the
result.

Its mask is True where a key is *hidden*, the opposite of `scaled_dot_product_attention`. The output for a query that
sees no key is NaN, so such masks are declined. It has no grouped heads, soft cap or sinks, and only the default scale.

Time: the four projections, 8·b·n·d_model² floating-point operations for self-attention, and 4·b·n_q·n_k·d_model for the
core. Memory: on the CPU the fast path holds a score matrix, O(n_q·n_k); without it the output and arrays of its size,
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
    """Set whether the module may take its fast path."""
    global _fastpath
    _fastpath = fastpath == "on"


def declines(workload: Any) -> tuple[str, str] | None:
    """Declines head and value widths other than d_model / heads, and queries that see no key."""
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
    """The module with these parameters, as a function of x and memory, which is None for self-attention.

    x is (batch, n_q, d_model), memory (batch, n_k, d_model).
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
    """The mask in the module's form, made once: (n_q, n_k) if one serves all, else (batch · heads, n_q, n_k)."""

    def __init__(self, heads: int, causal: bool, attn_mask: Tensor | None) -> None:
        self._heads, self._causal, self._given = heads, causal, attn_mask
        self._made: Tensor | None = None

    def of(self, x: Tensor, tokens: Tensor) -> Tensor | None:
        """The mask for these tokens; a causal one too, because the module needs it beside its `is_causal`."""
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
