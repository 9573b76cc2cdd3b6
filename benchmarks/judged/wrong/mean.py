"""The mean of the values."""

import torch  # noqa: F401


def attend(q, k, v, *, scale):
    return v.mean(2, keepdim=True).expand_as(q).contiguous()
