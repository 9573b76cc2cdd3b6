"""A multi-head block computed around any core: with the library's own linear map, stack, reshape and axes exchanged.

How x becomes query, key and value is the contender's choice:

``fused``
    three maps, one matrix for all heads each; the heads are told apart by reshaping, and come before the length by an
    exchange of axes, without a copy.
``packed``
    one map with all three matrices one above the other, whose result is cut in three; of a memory one map for the query
    and one for key and value.
``loop``
    one small map a head, each with the rows of its head, and the results stacked: the slow way.

Cutting the parameters up is preparation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.backends.library import Call, Library
from attnlab.problem import block_sizes
from attnlab.problem.block import Block, angles

#: query, key and value to the output of all heads, (batch, heads, length, dim) each
Core = Callable[[Any, Any, Any], Any]


class BlockCall:
    """One block with its arrays in the library, ready to be called: returns y, (batch, queries, d_model).

    `core` is made from the projected query, key and value, once: a backend may prepare itself for them.
    Raises ValueError for an unknown projection.
    """

    def __init__(
        self,
        library: Library,
        block: Block,
        dtype: str,
        core: Callable[[Any, Any, Any], Core],
        projection: str = "fused",
    ) -> None:
        if projection not in block_sizes.PROJECTIONS:
            raise ValueError(
                f"projection must be one of {', '.join(block_sizes.PROJECTIONS)}, got {projection!r}"
            )
        self._library, self._block, self._dtype = library, block, dtype
        self._x = library.from_numpy(block.x, dtype)
        self._source = self._x if block.memory is None else library.from_numpy(block.memory, dtype)
        self._out = self._linear(block.parameters["out_proj.weight"], block.parameters["out_proj.bias"])
        self._turns = self._rotations() if block.rotary else None
        self._project = {"fused": self._fused, "packed": self._packed, "loop": self._loop}[projection]()
        self._core = core(*self.project())

    def __call__(self) -> Any:
        return self.output(self._core(*self.project()))

    def project(self) -> tuple[Any, Any, Any]:
        """Query, key and value, turned by their positions where they are: (batch, heads, length, dim) each."""
        query, key, value = self._project()
        if self._turns is not None:
            query, key = (
                self._turned(one, *turn) for one, turn in zip((query, key), self._turns, strict=True)
            )
        return query, key, value

    def output(self, heads: Any) -> Any:
        """The heads side by side, projected: from (batch, heads, queries, value_dim) to (batch, queries, d_model)."""
        batch, count, length, dim = heads.shape
        return self._out(heads.swapaxes(1, 2).reshape(batch, length, count * dim))

    @property
    def parts(self) -> dict[str, Call]:
        """The three parts of the call as calls of their own, on arrays that the parts before them left."""
        projected = self.project()
        heads = self._core(*projected)
        return {
            "projection": self.project,
            "attention": lambda: self._core(*projected),
            "output": lambda: self.output(heads),
        }

    # -- the three ways of projecting --------------------------------------------------------------

    def _fused(self) -> Call:
        block = self._block
        maps = {name: self._linear(*pair) for name, pair in block.projections.items()}

        def project() -> tuple[Any, Any, Any]:
            return (
                _split(maps["query"](self._x), block.heads),
                _split(maps["key"](self._source), block.kv_heads),
                _split(maps["value"](self._source), block.kv_heads),
            )

        return project

    def _packed(self) -> Call:
        block = self._block
        q, k, _ = block_sizes.projected(block)
        weight, bias = block.parameters["in_proj_weight"], block.parameters["in_proj_bias"]
        if block.memory is None:
            every = self._linear(weight, bias)

            def project() -> tuple[Any, Any, Any]:
                return self._cut(every(self._x), q, q + k)

            return project
        query, rest = self._linear(weight[:q], bias[:q]), self._linear(weight[q:], bias[q:])

        def project_both() -> tuple[Any, Any, Any]:
            both = rest(self._source)
            return (
                _split(query(self._x), block.heads),
                _split(both[..., :k], block.kv_heads),
                _split(both[..., k:], block.kv_heads),
            )

        return project_both

    def _cut(self, every: Any, first: int, second: int) -> tuple[Any, Any, Any]:
        block = self._block
        return (
            _split(every[..., :first], block.heads),
            _split(every[..., first:second], block.kv_heads),
            _split(every[..., second:], block.kv_heads),
        )

    def _loop(self) -> Call:
        block = self._block
        counts = {"query": block.heads, "key": block.kv_heads, "value": block.kv_heads}
        maps = {}
        for name, (weight, bias) in block.projections.items():
            pairs = zip(np.split(weight, counts[name]), np.split(bias, counts[name]), strict=True)
            maps[name] = [self._linear(*pair) for pair in pairs]

        def project() -> tuple[Any, Any, Any]:
            query, key, value = (
                self._library.stacked([head(tokens) for head in maps[name]], 1)
                for name, tokens in (("query", self._x), ("key", self._source), ("value", self._source))
            )
            return query, key, value

        return project

    # -- pieces ------------------------------------------------------------------------------------

    def _linear(self, weight: Any, bias: Any) -> Callable[[Any], Any]:
        library = self._library
        w, b = (library.from_numpy(np.ascontiguousarray(one), self._dtype) for one in (weight, bias))
        return lambda tokens: library.linear(tokens, w, b)

    def _rotations(self) -> list[tuple[Any, Any]]:
        """Cosines and sines of queries and of keys, rounded once to the block's number format."""
        every = (angles(one, self._block.head_dim) for one in self._block.positions)
        return [
            (
                self._library.from_numpy(np.cos(by), self._dtype),
                self._library.from_numpy(np.sin(by), self._dtype),
            )
            for by in every
        ]

    def _turned(self, array: Any, cos: Any, sin: Any) -> Any:
        half = self._block.head_dim // 2
        one, other = array[..., :half], array[..., half:]
        turned = self._library.stacked([one * cos - other * sin, other * cos + one * sin], -2)
        return turned.reshape(*array.shape)


def _split(array: Any, heads: int) -> Any:
    """(batch, length, heads · dim) as (batch, heads, length, dim): a view, as the projection left it in memory."""
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)
