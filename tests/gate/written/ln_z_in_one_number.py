"""Weights as exp(s − ln Z), with ln Z from a library's logsumexp."""

import torch
from torch import Tensor

LIBRARY = "torch"


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V."""
    inner = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(inner) @ key.to(inner).mT * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
    return (weights @ value.to(inner)).to(query.dtype)
