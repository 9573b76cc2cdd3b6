"""Attention written out in PyTorch: matmul, softmax, matmul; for backends that run it as it is, or compiled."""

import torch
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in its sum.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,).
    """
    key, value = _repeated(query, key, value)
    scores = _scores(query, key, causal, scale, mask, bias, softcap)
    return _weights(scores, mask, sinks) @ value


def attend_with_log_sum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """What `attend` returns, and ln Z, (batch, heads, n_q), −inf where no key is seen.

    Of the scores as they were rounded, but computed in float32: a bfloat16 ln Z would leave the weights of two parts
    of the keys off by some per cent.
    """
    key, value = _repeated(query, key, value)
    scores = _scores(query, key, causal, scale, mask, bias, softcap)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sinks is not None:
        wide = torch.cat((wide, sinks[:, None, None].to(wide.dtype).expand(*wide.shape[:-1], 1)), dim=-1)
    return _weights(scores, mask, sinks) @ value, torch.logsumexp(wide, dim=-1)


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with a head for every head of the query."""
    group = query.shape[1] // key.shape[1]
    if group == 1:
        return key, value
    return key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)


def _scores(
    query: Tensor,
    key: Tensor,
    causal: bool,
    scale: float,
    mask: Tensor | None,
    bias: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """(batch, heads, n_q, n_k), -inf where a key is not seen."""
    scores = query @ key.transpose(-2, -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores if mask is None else scores.masked_fill(~mask, float("-inf"))


def _weights(scores: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """The softmax of the scores, with a sink in its sum; 0 where no key is seen."""
    if sinks is not None:
        sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    weights = torch.softmax(scores, dim=-1)
    # the softmax of a row that sees no key is NaN
    return weights if mask is None else weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
