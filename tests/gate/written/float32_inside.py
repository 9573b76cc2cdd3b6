"""float32 inside whatever comes in, a mask of −10^9 instead of −∞, and 10^-9 in the denominator."""

import torch
from torch import Tensor

LIBRARY = "torch"


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V."""
    scores = query.float() @ key.float().mT * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -1e9)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
    return (weights @ value.float()).to(query.dtype)
