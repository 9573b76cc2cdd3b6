"""PyTorch's own kernel, computed twice."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    right(q, k, v, scale=scale)
    return right(q, k, v, scale=scale)
