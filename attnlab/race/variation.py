"""Inputs that are changed before every turn so that the answer changes in a known way, exactly.

Attention computes with q·k and with sums of values, head by head. Flipping the sign of the same features of query and
key leaves every product as it was, bit by bit; flipping features of the values flips those of the output; and heads in
another order give their outputs in that order: in every number format, with any scale, soft cap, and mask or bias that
is the same for all heads (else the heads stay). So the answer to changed inputs is known from the one that was checked,
and one that was kept from earlier inputs is wrong.

Not where arrays are laid out anew before the clock (packed weights, sessions, other storages), cannot be written into,
or are large; not for a block, whose arrays come from its projections, nor for gradients, whose graph holds copies.
Weights that are kept by their arrays' addresses pass where there is one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backend.backend import Backend
from attnlab.backend.library import Library
from attnlab.problem.problem import Problem
from attnlab.problem.vocabulary import CONTIGUOUS, GIVEN, OUTPUT
from attnlab.problem.workload import Workload

Array = NDArray[Any]


def changeable(workload: Workload, backend: Backend, library: Library) -> bool:
    """Whether the arrays of a prepared call can be changed where they lie."""
    plain = workload.storage == CONTIGUOUS and workload.d_model is None and not workload.backward
    return plain and backend.prepare is None and library.in_place


@dataclass(frozen=True)
class _Drawn:
    """Signs of the features of query and key, and of the values; the order of the query's heads, and of the key's."""

    of_scores: Array
    of_values: Array
    heads: Array
    kv_heads: Array


def _drawn(workload: Workload, seed: int) -> _Drawn:
    generator = np.random.default_rng([workload.seed, seed])
    of_scores, of_values = (
        1 - 2 * generator.integers(0, 2, size) for size in (workload.head_dim, workload.value_dim)
    )
    order = np.arange(workload.kv_heads)
    if workload.bias == "none" and not workload.sinks and workload.mask != GIVEN:
        generator.shuffle(order)
    each = workload.heads // workload.kv_heads
    return _Drawn(of_scores, of_values, (order[:, None] * each + np.arange(each)).ravel(), order)


def change(
    library: Library, arrays: tuple[Any, ...], problem: Problem, workload: Workload, seed: int
) -> None:
    """Write the problem's query, key and value, changed by `seed`, into `arrays`, which are copies of them."""
    drawn = _drawn(workload, seed)
    for array, numbers, heads, signs in (
        (arrays[0], problem.query, drawn.heads, drawn.of_scores),
        (arrays[1], problem.key, drawn.kv_heads, drawn.of_scores),
        (arrays[2], problem.value, drawn.kv_heads, drawn.of_values),
    ):
        changed = numbers[:, heads] * signs.astype(numbers.dtype)
        library.write(array, (slice(None),) * 4, library.from_numpy(changed, workload.dtype))


def restored(answers: dict[str, Array], workload: Workload, seed: int) -> dict[str, Array]:
    """The answers to the inputs as they were, from those to the inputs changed by `seed`."""
    drawn = _drawn(workload, seed)
    order = np.argsort(drawn.heads)
    return {
        name: answer[:, order] * (drawn.of_values.astype(answer.dtype) if name == OUTPUT else 1)
        for name, answer in answers.items()
    }
