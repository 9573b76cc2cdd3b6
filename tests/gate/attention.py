"""Attention by PyTorch's automatic differentiation: it shares nothing with that by NumPy in `mutants.parts`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attnlab.problem.problem import Alibi, Problem
from attnlab.problem.vocabulary import GRADIENTS, OUTPUT, round_to

RNG = np.random.default_rng(1)
#: every part of the contract alone, and all together; the masks are for 37 queries and 41 keys
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "value_dim": {"value_dim": 5},
    "causal": {"causal": "bottom_right"},
    "window": {"window": (9, 0)},
    "lengths": {"key_lengths": [41, 13]},
    "a row without keys": {"mask": np.arange(37)[:, None] != 7},
    "mask": {"mask": RNG.random((37, 41)) < 0.6},
    "bias": {"bias": "normal"},
    "alibi": {"bias": Alibi.of_heads(4)},
    "soft cap": {"softcap": 2.0},
    "sinks": {"sinks": np.linspace(1, 3, 4)},
    "all": {
        "softcap": 3.0,
        "sinks": np.ones(4),
        "bias": "normal",
        "window": (20, 5),
    },
}


def drawn(
    dtype: str,
    seed: int = 0,
    *,
    queries: int = 37,
    keys: int = 41,
    dim: int = 8,
    value_dim: int | None = None,
    scale: float = 0.4,
    std: float = 1.0,
    **features: Any,
) -> Problem:
    """Two batch elements, four heads on two of key and value; float arrays are rounded to the dtype.

    bias : "normal" for an array of each head's own.
    """
    rng, value_dim = np.random.default_rng(seed), value_dim or dim
    shapes = ((2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, value_dim), (2, 4, queries, value_dim))
    q, k, v, g = (round_to(rng.standard_normal(shape), dtype) for shape in shapes)
    if isinstance(features.get("bias"), str):
        features["bias"] = np.random.default_rng(seed + 100).standard_normal((1, 4, queries, keys))
    features = {
        name: round_to(one, dtype) if isinstance(one, np.ndarray) and one.dtype.kind == "f" else one
        for name, one in features.items()
    }
    return Problem.of(round_to(std * q, dtype), k, v, output_gradient=g, scale=scale, dtype=dtype, **features)


def eager(problem: Problem, dtype: str | None = None) -> dict[str, np.ndarray]:
    """Output and gradients, each step stored in the dtype."""
    kind = getattr(torch, dtype or problem.dtype)
    leaves = [torch.tensor(x).to(kind).requires_grad_() for x in (problem.query, problem.key, problem.value)]
    q, (k, v) = leaves[0], (x.repeat_interleave(problem.group, dim=1) for x in leaves[1:])
    output = _at_once(problem, q, k, v)
    found = torch.autograd.grad(output, leaves, torch.tensor(problem.output_gradient).to(kind))
    arrays = (torch.nan_to_num(x.detach().double()).numpy() for x in (output, *found))
    return dict(zip((OUTPUT, *GRADIENTS), arrays, strict=True))


def _at_once(problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = q @ k.mT * problem.scale
    if problem.softcap is not None:
        s = torch.tanh(s / problem.softcap) * problem.softcap
    if problem.bias_array is not None:
        s = s + torch.tensor(problem.bias_array).to(s.dtype)
    if problem.sinks is not None:
        column = torch.tensor(problem.sinks).to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)
        s = torch.cat([s, column], dim=-1)
    wider = problem.without_sinks()
    seen = wider.mask.array(wider.shape)
    if seen is not None:
        s = s.masked_fill(torch.tensor(~np.broadcast_to(seen, s.shape)), -math.inf)
    weights = torch.softmax(s, dim=-1)
    if seen is not None:
        weights = torch.where(torch.tensor(seen.any(-1, keepdims=True)), weights, 0.0)
    return weights[..., : k.shape[2]] @ v
