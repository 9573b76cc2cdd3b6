"""It looks at every second key."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    return right(q, k[:, :, ::2].contiguous(), v[:, :, ::2].contiguous(), scale=scale)
