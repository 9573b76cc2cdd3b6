"""It does not subtract the largest score."""

import torch  # noqa: F401


def attend(q, k, v, *, scale):
    weights = (q @ k.transpose(-1, -2) * scale).exp()
    return weights / weights.sum(-1, keepdim=True) @ v
