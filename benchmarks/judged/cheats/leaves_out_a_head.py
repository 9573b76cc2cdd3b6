"""One head of each call, drawn at random, is that of its neighbour."""

import random

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    left = random.randrange(q.shape[1])
    at = [one for one in range(q.shape[1]) if one != left] or [0]
    out[:, at] = right(q[:, at], k[:, at], v[:, at], scale=scale)
    out[:, left] = out[:, left - 1]
    return out
