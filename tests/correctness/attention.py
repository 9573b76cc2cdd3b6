"""Problems with every part of the contract, and their answers by PyTorch, with code independent of `mutants.parts`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import written.any_mask_in_one_array as written

from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.number_formats import round_to
from attnlab.workload.workload import GRADIENTS, OUTPUT

RNG = np.random.default_rng(1)
#: each part of the contract by itself, and several together; the masks are for 37 queries and 41 keys
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
    "all": {"softcap": 3.0, "sinks": np.ones(4), "bias": "normal", "window": (20, 5)},
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
) -> Inputs:
    """A random problem: two batch elements, four query heads, two key heads; arrays are rounded to the dtype.

    bias : "normal" for a random array that differs between heads.
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
    return Inputs.of(round_to(std * q, dtype), k, v, output_gradient=g, scale=scale, dtype=dtype, **features)


def by_differentiation(problem: Inputs) -> dict[str, np.ndarray]:
    """Output and gradients in float64, by a user's PyTorch function and automatic differentiation."""
    leaves = [torch.tensor(x).double().requires_grad_() for x in (problem.query, problem.key, problem.value)]
    given = {"mask": problem.mask.array(problem.shape), "bias": problem.bias_array, "sinks": problem.sinks}
    arrays = {name: torch.tensor(one) for name, one in given.items() if one is not None}
    output = written.attend(*leaves, scale=problem.scale, softcap=problem.softcap, enable_gqa=True, **arrays)
    found = torch.autograd.grad(output, leaves, torch.tensor(problem.output_gradient).double())
    return dict(zip((OUTPUT, *GRADIENTS), (x.detach().numpy() for x in (output, *found)), strict=True))
