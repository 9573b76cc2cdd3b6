"""An online softmax over blocks of keys, in a Python loop; differentiation goes back through every maximum."""

import torch
from torch import Tensor

LIBRARY = "torch"
BLOCK = 64


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V."""
    inner = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows = torch.arange(query.shape[-2])[:, None]
    top = torch.full((*query.shape[:-1], 1), -1e30, dtype=inner)
    total = torch.zeros_like(top)
    output = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=inner)
    for start in range(0, key.shape[-2], BLOCK):
        block = slice(start, min(start + BLOCK, key.shape[-2]))
        scores = query.to(inner) @ key[..., block, :].to(inner).mT * scale
        if causal:
            scores = scores.masked_fill(rows < torch.arange(block.start, block.stop), float("-inf"))
        highest = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, fade = (scores - highest).exp(), (top - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        output = output * fade + weights.to(query.dtype).to(inner) @ value[..., block, :].to(inner)
        top = highest
    return (output / total).to(query.dtype)
