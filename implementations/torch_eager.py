"""matmul, softmax, matmul in PyTorch: attention as a person writes it.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and two passes over the
scores between them (three where causal), each a kernel of its own that reads and writes memory. Memory: two
arrays of the size of the score matrix beside the output, O(n_q·n_k).

Scores and weights are rounded to the inputs' dtype: in float16 a score beyond 65504 makes its row NaN.
"""

import torch
from torch import Tensor

LIBRARY = "torch"


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> Tensor:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    scores = query @ key.transpose(-2, -1) * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ value
