"""What a workload costs at least, by arithmetic: pairs, floating-point operations, bytes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from attnlab.problem import block_sizes
from attnlab.problem.directions import DIRECTIONS
from attnlab.problem.dtypes import ITEM_BYTES
from attnlab.problem.mask_part import Shape
from attnlab.problem.masks import Mask

if TYPE_CHECKING:
    from attnlab.problem.workload import Workload


@lru_cache(maxsize=512)
def pairs(mask: Mask, shape: Shape) -> int:
    """Query-key pairs that `mask` keeps, over all batches and heads."""
    return mask.pairs(shape)


@lru_cache(maxsize=64)  # asked once for each contender of a race
def flops(w: Workload) -> int:
    """Floating-point operations of the matrix products, those of a block's projections among them."""
    core = int(DIRECTIONS[w.direction].flops * 2 * w.pairs * (w.head_dim + w.value_dim))
    return core + (0 if w.d_model is None else block_sizes.projection_flops(w))


def input_bytes(w: Workload) -> int:
    """Bytes of all inputs that are arrays, but for a mask."""
    if w.d_model is not None:
        count = block_sizes.input_numbers(w) + _bias_numbers(w, w.queries * w.keys)
        return count * ITEM_BYTES[w.dtype]
    rows = w.heads * w.queries * w.head_dim
    rows += w.kv_heads * w.keys * (w.head_dim + w.value_dim)
    if w.backward:
        rows += w.heads * w.queries * w.value_dim
    return (w.batch * rows + _bias_numbers(w, w.queries * w.keys)) * ITEM_BYTES[w.dtype]


def output_bytes(w: Workload) -> int:
    """Bytes of all that is returned."""
    sizes = {name: ITEM_BYTES[w.dtype_of(name)] for name in w.results}
    return sum(math.prod(w.shape_of(name)) * size for name, size in sizes.items())


@lru_cache(maxsize=64)  # asked once for each contender of a race
def least_bytes(w: Workload) -> int:
    """Bytes that must be read and written.

    A key that no query sees need not be read, nor a query that sees no key, nor the bias of a pair that no batch
    element keeps. Of a block all inputs are read.
    """
    if w.d_model is not None:
        return w.input_bytes + w.output_bytes
    queries, keys = _used(w.masked, w.shape)
    rows = w.heads * queries * (w.head_dim + (w.value_dim if w.backward else 0))
    rows += w.kv_heads * keys * (w.head_dim + w.value_dim)
    if w.bias != "none":
        rows += _bias_numbers(w, _kept_by_some(w.masked, w.shape))
    return rows * ITEM_BYTES[w.dtype] + w.output_bytes


def _bias_numbers(w: Workload, of_pairs: int) -> int:
    """Numbers of a bias that is an array, over so many pairs; it is one for all batch elements."""
    return w.heads * of_pairs if w.bias == "normal" else 0


@lru_cache(maxsize=512)
def _used(mask: Mask, shape: Shape) -> tuple[int, int]:
    return mask.used(shape)


@lru_cache(maxsize=512)
def _kept_by_some(mask: Mask, shape: Shape) -> int:
    return mask.kept_by_some(shape)
