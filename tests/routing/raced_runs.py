"""Runs that were made up of times written by hand, and tensors to ask about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from synthetic import synthetic
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_function

import attnlab
from attnlab.routing.dispatch import Choice, Fastest
from attnlab.runs.store import Run

TENSORS = ("torch_eager", "torch_sdpa", "torch_sdpa_math", "torch_sdpa_flash")
DIRECTIONS = ("forward", "training")


def raced(folder: Path, seconds: Mapping[str, float], **options: Any) -> Run:
    """A made-up run on this machine in which every call of a contender takes so many microseconds."""
    costs = {name: (lambda workload, one=one: one * 1e-6) for name, one in seconds.items()}
    lengths = options.pop("lengths", (8, 16, 32))
    folder.mkdir(exist_ok=True)
    run = synthetic(
        folder, costs=costs, kernels={}, lengths=lengths, heads=(1, 2, 4), wander=0.0, noise=0.001, **options
    )
    run.environment = {}
    return run


def tensors(
    queries: int = 16,
    keys: int | None = None,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    dim: int = 64,
    dtype: str = "float32",
    grad: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, standard normal."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (queries, keys or queries, keys or queries)
    counts = (heads, kv_heads or heads, kv_heads or heads)
    found = [
        torch.randn(batch, count, length, dim, generator=generator)
        .to(getattr(torch, dtype))
        .requires_grad_(grad)
        for count, length in zip(counts, lengths, strict=True)
    ]
    return found[0], found[1], found[2]


def winner(run: Run, *arrays: Any, **asked: Any) -> Choice:
    """Who answers this call by `run`."""
    return attnlab.fastest(run).explain(*(arrays or tensors()), **asked)


def sent(found: Fastest, *arrays: Any, **asked: Any) -> str:
    """The backend that is really called, which is the one that `explain` tells."""
    called: list[str] = []

    def noting(name: str, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*given: Any, **options: Any) -> Tensor:
            called.append(name)
            return attend(*given, **options)

        return call

    backends = found._routes.backends
    noted = {name: replace(one, attend=noting(name, one.attend)) for name, one in backends.items()}
    with mock.patch.object(found, "_remembered", {}), mock.patch.dict(backends, noted):
        found(*arrays, **asked)
    answer = found(*arrays, **asked)  # by what is remembered
    told = found.explain(*arrays, **asked).backend
    assert called == ([] if told == "torch_sdpa" else [told])
    assert answer.shape == own_function(*arrays, **asked).shape
    return told
