"""Tensors of any number format as plain bytes, and back: NumPy has no bfloat16."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The tensor's numbers, in the order of its axes."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    found: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def of_bytes(data: NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor of `shape` that has these numbers in its own memory."""
    found = torch.empty(shape, dtype=getattr(torch, dtype))
    if found.numel():
        found.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data.copy()))
    return found
