"""Zeros."""

import torch


def attend(q, k, v, *, scale):
    return torch.zeros_like(q)
