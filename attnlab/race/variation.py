"""Inputs that are changed between turns so that the answer changes in a known way, exactly.

Attention computes with q·k and with sums of values, head by head. Flipping the sign of the same features of query and
key leaves every product as it was, bit by bit; flipping features of the values flips those of the output; and heads in
another order give their outputs in that order: in every number format, with any scale, soft cap, and mask or bias that
is the same for all heads (else the heads stay). Gradients change alike where the output's gradient does; and they are
linear in it, so that its sign and a power of two are theirs, which is all that is changed where a way back alone is
timed. Of a block the features of x and the columns that they meet are flipped, those of a head in pairs of projections,
and those of y. So the answer to changed inputs is known from the one that was checked, and one that was kept from
earlier inputs is wrong.

Weights stay where heads cannot change their order: then other queries, keys and values are drawn for every second
change, whose answer is held against the truth of its own. Not where a bias or sinks are drawn with them, inputs are
read, or for gradients and blocks: there weights that are kept by their arrays' addresses pass.

Nothing is changed where a backend takes a whole block, which it may lay out anew, where a library's arrays cannot be
written into at all (on the ranks of a team, and JAX's on a device), and where inputs are large. The last answer is held
against the known one all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.workload.inputs import Inputs
from attnlab.workload.vocabulary import GIVEN, GRADIENTS, LOG_SUM, OF_QUERIES, OUTPUT
from attnlab.workload.workload import Workload

Array = NDArray[Any]


@dataclass(frozen=True)
class _Drawn:
    """Signs of the features of query and key, of the values, of x and y of a block, and of each head's gradients.

    heads, kv_heads : the order of the query's heads, and of the key's. other : whether other arrays are drawn.
    """

    of_scores: Array
    of_values: Array
    of_x: Array
    of_y: Array
    of_gradients: Array
    heads: Array
    kv_heads: Array
    other: bool


def _drawn(workload: Workload, seed: int) -> _Drawn:
    generator = np.random.default_rng([workload.seed, seed])
    w, each = workload, workload.heads // workload.kv_heads

    def signs(*shape: int) -> Array:
        return 1 - 2 * generator.integers(0, 2, shape, dtype=np.int8)

    of_groups, most = (w.batch, w.kv_heads, 1, 1), 1 if w.dtype == "float16" else 3  # that might overflow
    alike = w.bias == "none" and not w.sinks and w.mask != GIVEN and w.d_model is None
    # which other arrays can be drawn for, the rest of the problem staying as it is
    alone = w.distribution == "normal" and w.bias in ("none", "alibi") and not w.sinks and w.mask != GIVEN
    alone = alone and w.d_model is None and not w.backward
    order, groups = np.arange(w.kv_heads), np.tile(np.arange(each), (w.kv_heads, 1))
    if alike and OUTPUT in w.results:
        generator.shuffle(order)
    if alike and not w.backward:  # sums over a group would be taken in another order
        groups = generator.permuted(groups, axis=1)
    return _Drawn(
        # positions turn pairs of components
        of_scores=np.tile(signs(w.head_dim // 2), 2) if w.rotary else signs(w.head_dim),
        of_values=signs(w.value_dim),
        of_x=signs(w.d_model or 1),
        of_y=signs(w.d_model or 1),
        of_gradients=signs(*of_groups) << generator.integers(0, most, of_groups, dtype=np.int8),
        heads=(order[:, None] * each + groups).ravel(),
        kv_heads=order,
        other=alone and (w.heads == 1 or not alike) and bool(generator.integers(0, 2)),
    )


def posed(workload: Workload, seed: int) -> Workload:
    """The workload whose inputs `changed` is to be given: itself, or the same with others drawn."""
    return workload.with_(seed=workload.seed ^ 1) if _drawn(workload, seed).other else workload


def changed(problem: Inputs, workload: Workload, seed: int) -> Inputs:
    """The problem of `workload`, changed by `seed`: see `restored`."""
    drawn = _drawn(workload, seed)
    if problem.block is not None:
        return _changed_block(problem, drawn)
    arrays: dict[str, Array] = {}
    if problem.output_gradient is not None:
        signs = np.repeat(drawn.of_gradients, workload.heads // workload.kv_heads, axis=1)
        arrays["output_gradient"] = _turned(problem.output_gradient, drawn.heads, signs)
    if OUTPUT in workload.results:
        if problem.output_gradient is not None:
            arrays["output_gradient"] *= drawn.of_values
        arrays["query"] = _turned(problem.query, drawn.heads, drawn.of_scores)
        arrays["key"] = _turned(problem.key, drawn.kv_heads, drawn.of_scores)
        arrays["value"] = _turned(problem.value, drawn.kv_heads, drawn.of_values)
    return problem.with_(**arrays)


def _turned(array: Array, heads: Array, signs: Array) -> Array:
    """Its heads in that order, times the signs; one array more and no other, as fresh pages take longer than this."""
    found = array[:, heads]
    found *= signs
    return found


def _changed_block(problem: Inputs, drawn: _Drawn) -> Inputs:
    block = problem.block
    assert block is not None
    scores = np.tile(drawn.of_scores, block.heads + block.kv_heads)
    x, y, rows = drawn.of_x, drawn.of_y, np.concatenate([scores, np.tile(drawn.of_values, block.kv_heads)])
    factors = {
        "in_proj_weight": rows[:, None] * x,
        "in_proj_bias": rows,
        "out_proj.weight": y[:, None] * np.tile(drawn.of_values, block.heads),
        "out_proj.bias": y,
    }
    parameters = {name: array * factors[name] for name, array in block.parameters.items()}
    memory = None if block.memory is None else block.memory * x
    return problem.with_(block=replace(block, x=block.x * x, memory=memory, parameters=parameters))


def restored(answers: Mapping[str, Array], workload: Workload, seed: int) -> dict[str, Array]:
    """The answers to the inputs as they were, from those to the inputs changed by `seed`."""
    drawn, forward = _drawn(workload, seed), OUTPUT in workload.results
    if workload.d_model is not None:
        return {OUTPUT: answers[OUTPUT] * drawn.of_y}
    found = {}
    for name, answer in answers.items():
        if forward and name != LOG_SUM:
            answer = answer * (drawn.of_scores if name in GRADIENTS[:2] else drawn.of_values)
        if name in GRADIENTS:
            answer = answer / np.repeat(drawn.of_gradients, answer.shape[1] // workload.kv_heads, axis=1)
        found[name] = answer[:, np.argsort(drawn.heads if name in OF_QUERIES else drawn.kv_heads)]
    return found
