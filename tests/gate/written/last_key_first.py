"""An online softmax that walks the keys from last to first in blocks of 37, in float32; PyTorch differentiates it."""

import torch
from torch import Tensor

LIBRARY = "torch"
BLOCK = 37


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V."""
    rows = torch.arange(query.shape[-2])[:, None]
    q, k, v = (one.float() for one in (query, key, value))
    top = torch.full((*query.shape[:-1], 1), -1e30)
    total = torch.zeros_like(top)
    output = torch.zeros((*query.shape[:-1], value.shape[-1]))
    for stop in range(key.shape[-2], 0, -BLOCK):
        block = slice(max(0, stop - BLOCK), stop)
        scores = q @ k[..., block, :].mT * scale
        if causal:
            scores = scores.masked_fill(rows < torch.arange(block.start, block.stop), float("-inf"))
        highest = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, fade = (scores - highest).exp(), (top - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        output = output * fade + weights @ v[..., block, :]
        top = highest
    return (output / total).to(query.dtype)
