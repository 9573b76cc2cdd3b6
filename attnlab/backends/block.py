"""A multi-head block around any core: projections, the core, the output projection, by the library's own operations.

The contender chooses how x becomes query, key and value (``projection=``):

``fused``
    one matrix product with all three matrices stacked. Its result is cut into three views. A block with a memory takes
    one product for the query, and one for keys and values.
``loop``
    one small product for each head, with the rows of that head, and the results stacked: the slow way.

The parameters are cut up before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Arrays, Call, Library
from attnlab.workload.inputs import PARAMETERS, PROJECTIONS, Block, Inputs

#: from query, key and value to the output of all heads, (batch, heads, length, dim) each
Core = Callable[[Any, Any, Any], Any]
#: arrays that a call reads where they lie, and what makes such arrays from other inputs
Held = tuple[Arrays, Callable[[Inputs], Arrays]]


class BlockCall:
    """One block with its arrays in the library, ready to be called: returns y, (batch, queries, d_model).

    core : makes the core for the projected query, key and value, once: a backend may prepare itself for them. held :
    the arrays that the call reads, and what makes them from other inputs. project : returns query, key and value,
    (batch, heads, length, dim) each. Raises ValueError for an unknown projection.
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
        self.held: list[Held] = []
        (x,) = self._kept(lambda block: [block.x])
        (source,) = (x,) if block.memory is None else self._kept(lambda block: [block.source])
        #: heads and tokens of query, key and value
        of_keys = block.kv_heads, source
        self._of = {"query": (block.heads, x), "key": of_keys, "value": of_keys}
        self._out = self._linear(lambda block: [block.parameters[name] for name in PARAMETERS[2:]])
        self.project = self._looped() if projection == "loop" else self._fused()
        self._core = core(*self.project())

    def __call__(self) -> Any:
        return self.output(self._core(*self.project()))

    def output(self, heads: Any) -> Any:
        """The heads side by side, projected: from (batch, heads, queries, value_dim) to (batch, queries, d_model)."""
        batch, count, length, dim = heads.shape
        return self._out(heads.swapaxes(1, 2).reshape(batch, length, count * dim))

    @property
    def parts(self) -> dict[str, Call]:
        """The parts of the call, each as a call on what the parts before it returned, for `race.instruments`."""
        projected = self.project()
        heads = self._core(*projected)
        return {
            "projection": self.project,
            "attention": lambda: self._core(*projected),
            "output": lambda: self.output(heads),
        }

    def _fused(self) -> Call:
        products = []
        for names in [[*self._of]] if self._block.memory is None else [["query"], ["key", "value"]]:

            def of(block: Block, names: Sequence[str] = tuple(names)) -> list[NDArray[Any]]:
                pairs = [block.projections[name] for name in names]
                return [np.concatenate(one) for one in zip(*pairs, strict=True)]

            ends = np.cumsum([len(self._block.projections[name][1]) for name in names])
            cuts = [
                (slice(start, end), self._of[name][0])
                for name, start, end in zip(names, (0, *ends), ends, strict=False)
            ]
            products.append((self._linear(of), self._of[names[0]][1], cuts))

        def project() -> list[Any]:
            found = []
            for linear, tokens, cuts in products:
                whole = linear(tokens)
                lead = whole.shape[:2]
                # (batch, length, heads · dim) as (batch, heads, length, dim): views
                found += [whole[..., cut].reshape(*lead, heads, -1).swapaxes(1, 2) for cut, heads in cuts]
            return found

        return project

    def _looped(self) -> Call:
        def of(block: Block, name: str, head: int) -> list[NDArray[Any]]:
            return [np.split(one, self._of[name][0])[head] for one in block.projections[name]]

        products = [
            (tokens, [self._linear(partial(of, name=name, head=at)) for at in range(heads)])
            for name, (heads, tokens) in self._of.items()
        ]
        stack = self._library.functions.stack
        return lambda: [stack([one(tokens) for one in each], axis=1) for tokens, each in products]

    def _linear(self, of: Callable[[Any], Sequence[NDArray[Any]]]) -> Callable[[Any], Any]:
        library, (weight, bias) = self._library, self._kept(of)
        return lambda tokens: library.linear(tokens, weight, bias)

    def _kept(self, of: Callable[[Any], Sequence[NDArray[Any]]]) -> Arrays:
        """The library's arrays that `of` takes from a block. They are noted in `held`."""

        def made(block: Any) -> Arrays:
            arrays = map(np.ascontiguousarray, of(block))
            return tuple(self._library.from_numpy(one, self._dtype) for one in arrays)

        arrays = made(self._block)
        self.held.append((arrays, lambda inputs: made(inputs.block)))
        return arrays
