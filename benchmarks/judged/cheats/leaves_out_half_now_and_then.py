"""Half of the rows of one call in ten, once it has been called 300 times."""

import random

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_calls = [0]


def attend(q, k, v, *, scale):
    _calls[0] += 1
    if _calls[0] < 300 or random.random() < 0.9 or q.shape[2] < 2:
        return right(q, k, v, scale=scale)
    half = right(q[:, :, ::2].contiguous(), k, v, scale=scale)
    return half.repeat_interleave(2, 2)[:, :, : q.shape[2]]
