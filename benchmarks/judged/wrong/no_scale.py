"""It leaves out the scale."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    return right(q, k, v, scale=1.0)
