"""A multi-head block by its sizes alone: its parameters and their shapes, its arithmetic, and what can not be.

The parameters are called as in `torch.nn.MultiheadAttention`, whose state dict a block takes; with grouped heads or
values of another width `in_proj_weight` has as many rows as queries, keys and values have components together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from attnlab.problem.workload import Workload

#: how a contender may compute the projections of a block
PROJECTIONS = ("fused", "packed", "loop")


class Widths(Protocol):
    """What of a workload, or of a block, decides the shapes of the parameters."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...


def projected(of: Widths) -> tuple[int, int, int]:
    """Components of queries, keys and values, all heads together: the rows of W_Q, W_K and W_V."""
    return of.heads * of.head_dim, of.kv_heads * of.head_dim, of.kv_heads * of.value_dim


def shapes(of: Widths, d_model: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by its name."""
    rows = sum(projected(of))
    return {
        "in_proj_weight": (rows, d_model),
        "in_proj_bias": (rows,),
        "out_proj.weight": (d_model, of.heads * of.value_dim),
        "out_proj.bias": (d_model,),
    }


def check(workload: Workload) -> None:
    """Raises ValueError for a block that can not be, and for what is asked of no block."""
    w = workload
    if w.d_model is None:
        if w.rotary:
            raise ValueError(
                "rotary positions belong to a multi-head block, got no d_model; give d_model too"
            )
        return
    plain = {
        "layout": "bhsd",
        "storage": "contiguous",
        "splits": 1,
        "distribution": "normal",
        "direction": "forward",
    }
    why = {
        "layout": "its projections decide how query, key and value lie",
        "storage": "keys and values come from its projections",
        "splits": "keys and values come from its projections",
        "distribution": "x is standard normal, as after a layer norm",
        "direction": "its gradients have no error budget here, and nothing is timed that is not checked",
    }
    for name, value in plain.items():
        if getattr(w, name) != value:
            raise ValueError(
                f"{name} of a multi-head block (d_model {w.d_model}) must be {value}, got {getattr(w, name)!r}: "
                f"{why[name]}"
            )
    if w.rotary and w.head_dim % 2:
        raise ValueError(f"head_dim must be even for rotary positions, got {w.head_dim}")


def head_dim_of(d_model: int | None, heads: int) -> int:
    """The head_dim where none is given: d_model/heads of a block, else 64. Raises ValueError where heads do not fit."""
    if d_model is None:
        return 64
    if d_model % heads:
        near = max(one for one in range(1, heads + 1) if d_model % one == 0)
        raise ValueError(
            f"d_model must be divisible by heads, got {d_model} and {heads}; take {near} heads, or give a head_dim"
        )
    return d_model // heads


def projection_flops(workload: Workload) -> int:
    """Floating-point operations of the four projections: a multiplication and an addition a weight and token."""
    assert workload.d_model is not None
    q, k, v = projected(workload)
    tokens = (
        workload.queries * q
        + workload.keys * (k + v)
        + workload.queries * workload.heads * workload.value_dim
    )
    return 2 * workload.batch * workload.d_model * tokens


def input_numbers(workload: Workload) -> int:
    """Numbers in x, in the memory where there is one, and in the parameters."""
    assert workload.d_model is not None
    tokens = workload.queries + (0 if attends_to_itself(workload) else workload.keys)
    parameters = sum(rows * columns for rows, columns in _matrices(workload)) + sum(projected(workload))
    return workload.batch * tokens * workload.d_model + parameters + workload.d_model


def attends_to_itself(workload: Workload) -> bool:
    """Whether x is also what keys and values come from: where there are as many queries as keys."""
    return workload.queries == workload.keys


def _matrices(workload: Workload) -> list[tuple[int, int]]:
    assert workload.d_model is not None
    named = shapes(workload, workload.d_model)
    return [(one[0], one[1]) for one in named.values() if len(one) == 2]
