"""PyTorch's own kernel."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    return right(q, k, v, scale=scale)
