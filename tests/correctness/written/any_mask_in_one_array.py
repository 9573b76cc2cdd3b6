"""Mask and bias in one additive array, −∞ for hidden keys, heads repeated by `expand`; float32 or float64 inside."""

import torch
from torch import Tensor

LIBRARY = "torch"
EMPTY_ROWS = "zeros"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over what the mask keeps."""
    inner = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, n_q, _ = query.shape
    kv_heads, n_k = key.shape[1:3]

    def spread(x: Tensor) -> Tensor:
        wide = x[:, :, None].expand(-1, -1, heads // kv_heads, -1, -1)
        return wide.reshape(batch, heads, n_k, x.shape[-1]).to(inner)

    scores = query.to(inner) @ spread(key).mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    added = torch.zeros(n_q, n_k, dtype=inner) if bias is None else bias.to(inner)
    if mask is not None:
        added = torch.where(mask, added, float("-inf"))
    scores = scores + added
    top = scores.amax(-1, keepdim=True)
    sink = torch.tensor(float("-inf")) if sinks is None else sinks[:, None, None].to(inner)
    top = torch.maximum(top, sink)
    top = torch.where(top.isinf(), 0.0, top).detach()
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True) + (sink - top).exp()
    weights = weights / torch.where(total > 0, total, 1.0)
    return (weights @ spread(value)).to(query.dtype)
