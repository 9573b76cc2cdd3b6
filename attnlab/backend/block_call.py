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

from attnlab.backend.library import Call, Library
from attnlab.problem.problem import PROJECTIONS, Block, angles, projected

#: query, key and value to the output of all heads, (batch, heads, length, dim) each
Core = Callable[[Any, Any, Any], Any]
_NAMES = ("query", "key", "value")


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
        if projection not in PROJECTIONS:
            raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
        self._library, self._block, self._dtype = library, block, dtype
        x = library.from_numpy(block.x, dtype)
        source = x if block.memory is None else library.from_numpy(block.memory, dtype)
        self._tokens = dict(zip(_NAMES, (x, source, source), strict=True))
        self._heads = dict(zip(_NAMES, (block.heads, block.kv_heads, block.kv_heads), strict=True))
        self._out = self._linear(block.parameters["out_proj.weight"], block.parameters["out_proj.bias"])
        self._turns = [self._rotation(one) for one in block.positions] if block.rotary else None
        self._project = self._looped() if projection == "loop" else self._mapped(projection)
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

    def _mapped(self, projection: str) -> Call:
        """One map for the matrices that are projected together, or one each; a result of several is cut."""
        block, widths = self._block, projected(self._block)
        together: list[tuple[str, ...]] = (
            [_NAMES[:1], _NAMES[1:2], _NAMES[2:]] if projection == "fused" else [_NAMES]
        )
        if projection == "packed" and block.memory is not None:
            together = [_NAMES[:1], _NAMES[1:]]
        width, maps = dict(zip(_NAMES, widths, strict=True)), []
        for names in together:
            weights, biases = zip(*(block.projections[name] for name in names), strict=True)
            ends = np.cumsum([width[name] for name in names]).tolist()
            cuts = [slice(end - width[name], end) for name, end in zip(names, ends, strict=True)]
            linear = self._linear(np.concatenate(weights), np.concatenate(biases))
            maps.append((linear, self._tokens[names[0]], [self._heads[name] for name in names], cuts))

        def project() -> list[Any]:
            found: list[Any] = []
            for linear, tokens, heads, cuts in maps:
                whole = linear(tokens)
                if len(cuts) == 1:
                    found.append(_split(whole, heads[0]))
                else:
                    found += [_split(whole[..., cut], count) for cut, count in zip(cuts, heads, strict=True)]
            return found

        return project

    def _looped(self) -> Call:
        maps = []
        for name, (weight, bias) in self._block.projections.items():
            pairs = zip(np.split(weight, self._heads[name]), np.split(bias, self._heads[name]), strict=True)
            maps.append((self._tokens[name], [self._linear(*pair) for pair in pairs]))
        return lambda: [self._library.stacked([head(tokens) for head in heads], 1) for tokens, heads in maps]

    def _linear(self, weight: Any, bias: Any) -> Callable[[Any], Any]:
        library = self._library
        w, b = (library.from_numpy(np.ascontiguousarray(one), self._dtype) for one in (weight, bias))
        return lambda tokens: library.linear(tokens, w, b)

    def _rotation(self, positions: Any) -> tuple[Any, Any]:
        """Cosines and sines of these positions, rounded once to the block's number format."""
        by = angles(positions, self._block.head_dim)
        return (
            self._library.from_numpy(np.cos(by), self._dtype),
            self._library.from_numpy(np.sin(by), self._dtype),
        )

    def _turned(self, array: Any, cos: Any, sin: Any) -> Any:
        half = self._block.head_dim // 2
        one, other = array[..., :half], array[..., half:]
        turned = self._library.stacked([one * cos - other * sin, other * cos + one * sin], -2)
        return turned.reshape(*array.shape)


def _split(array: Any, heads: int) -> Any:
    """(batch, length, heads · dim) as (batch, heads, length, dim): a view, as the projection left it in memory."""
    batch, length, width = array.shape
    return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)
