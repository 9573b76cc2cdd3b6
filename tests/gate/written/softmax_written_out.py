"""Softmax as its formula reads, stored step by step in the dtype of the inputs, its maximum differentiated too.

In float16 it has float32 inside: the derivative of the quotient would fall below what float16 holds.
"""

import torch
from torch import Tensor

LIBRARY = "torch"


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V."""
    inner = torch.float32 if query.dtype == torch.float16 else query.dtype
    scores = query.to(inner) @ key.to(inner).mT * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ value.to(inner)).to(query.dtype)
