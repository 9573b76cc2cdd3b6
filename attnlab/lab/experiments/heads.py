"""Do heads interact, and what do they cost?

Each of h heads of dimension d_model/h projects the whole embedding and has a softmax of its own. It takes 1/h of the
FLOPs of a full-width head, and as many exponentials. Together they take 4 n² d_model FLOPs for QKᵀ and PV, whatever h
is, and h n² exponentials. They meet only in W_O: Concat(z) W_O = Σ_i z^i W_O^i, with W_O^i the rows of head i. The
formula as it is written holds a table of n² scores for each head. A kernel that never holds it takes far less memory
if n is much larger than d_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.lab.experiments import Chart, Experiment, Row, Subject, measured, of
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import Workload

MODEL_DIM, HEAD_DIM = 256, 32
HEADS, HEAD_COUNTS = MODEL_DIM // HEAD_DIM, (1, 2, 4, 8, 16)
_COST_LENGTH, MEMORY_LENGTH, MEMORY_HEADS = 256, 1024, 8
#: rounding error of a sum of d_model products in float64, with a margin
_ROUNDING = 1e-12
UNTOUCHED = "elements of other heads changed by one head"
AFTER = "‖heads after the weighted sum − heads before it‖ / ‖heads before it‖"
FLOPS, FLOPS_ALONE = "FLOPs / (4 n² d_model)", "FLOPs of one head / (4 n² d_model)"
OF_TABLE = "peak memory / table of scores"


def measure(one: Subject) -> Iterator[Row]:
    """In float64: whether heads interact, and what they cost. In float32: the peak memory of a call."""
    if one.dtype == "float64":
        yield from _structure(one)
        yield from _projected_heads(one)
        if not one.slow:
            yield from _cost(one)
    elif not one.slow:
        n, heads = MEMORY_LENGTH, MEMORY_HEADS
        arrays = one.rng(1550).standard_normal((3, 1, heads, n, MODEL_DIM // 4), dtype=np.float32)
        inputs = Inputs.of(*arrays, dtype="float32")
        call = one.backend.bind(Workload.of_inputs(inputs), inputs)
        call()  # the first call allocates workspaces that are kept
        peak = min(PEAK_MEMORY.measure(one.backend.open("cpu"), call).samples)  # without the inputs
        yield one.row(OF_TABLE, {"heads": heads, "length": n}, None, peak / (4 * heads * n * n))


def split(x: NDArray[Any], count: int) -> NDArray[Any]:
    """(batch, length, d_model) as (batch, heads, length, head_dim): reshaped, then transposed."""
    batch, length, width = x.shape
    return np.ascontiguousarray(x.reshape(batch, length, count, width // count).swapaxes(1, 2))


def joined(heads: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `split`: heads side by side."""
    batch, count, length, dim = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, count * dim)


def _structure(one: Subject) -> Iterator[Row]:
    """Independence of heads; what concatenation and W_O do."""
    rng, where = one.rng(1400), {"heads": HEADS}
    q, k, v = (split(rng.standard_normal((1, 12, MODEL_DIM)), HEADS) for _ in range(3))
    attend = partial(one.attend, causal=False, scale=HEAD_DIM**-0.5)
    together = attend(q, k, v)
    changed = [array.copy() for array in (q, k, v)]
    for array in changed:
        array[:, 3] += 1.0
    others = np.delete(attend(*changed) != together, 3, axis=1)
    yield one.row(UNTOUCHED, where, 0.0, others.sum())
    alone = [attend(*(array[:, h : h + 1] for array in (q, k, v))) for h in range(HEADS)]
    side_by_side, w_o = joined(together), rng.standard_normal((MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)
    block = side_by_side @ w_o
    parts = sum(together[:, h] @ w_o[h * HEAD_DIM : (h + 1) * HEAD_DIM] for h in range(HEADS))
    for quantity, off in (
        ("all heads at once − a loop over heads", np.concatenate(alone, axis=1) - together),
        ("Concat(z) W_O − Σ_i z^i W_O^i", block - parts),
        ("Concat(z) I − Concat(z)", side_by_side @ np.eye(MODEL_DIM) - side_by_side),
    ):
        yield one.row(quantity, where, 0.0, np.abs(off).max(), slack=_ROUNDING)
    # a random W_O that preserves variance rotates z: on average over a few rows |z − zW|² = |z|² + |zW|²
    quantity, error = "‖Concat(z) W_O − Concat(z)‖ / ‖Concat(z)‖", 4 / math.sqrt(MODEL_DIM)
    apart = np.linalg.norm(block - side_by_side) / np.linalg.norm(side_by_side)
    yield one.row(quantity, where, math.sqrt(2), float(apart), slack=error)


def _projected_heads(one: Subject) -> Iterator[Row]:
    """Which heads see a coordinate of the embedding; and heads that are split after the weighted sum, not before."""
    rng = one.rng(1450)
    x = rng.standard_normal((1, 12, MODEL_DIM))
    projections = rng.standard_normal((3, MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)

    def heads(tokens: NDArray[Any], dims: int) -> NDArray[Any]:
        q, k, v = (split(tokens @ w, MODEL_DIM // dims) for w in projections)
        return one.attend(q, k, v, causal=False, scale=dims**-0.5)

    before, moved = heads(x, HEAD_DIM), x.copy()
    moved[..., 5] += 1.0
    changed = (heads(moved, HEAD_DIM) != before).any(axis=(0, 2, 3)).sum()
    yield one.row("heads changed by one coordinate of the embedding", {"heads": HEADS}, HEADS, changed)
    # one softmax for all, whose output is split: every head then has the same weights
    apart = np.linalg.norm(joined(heads(x, MODEL_DIM)) - joined(before)) / np.linalg.norm(before)
    yield one.row(AFTER, {"heads": HEADS}, 0.0, float(apart), slack=_ROUNDING, relation=">")


def _cost(one: Subject) -> Iterator[Row]:
    """FLOPs that PyTorch counts in the operators that ran; no rows for a backend that computes without PyTorch."""
    from torch.utils.flop_counter import FlopCounterMode

    n = _COST_LENGTH
    x = one.rng(1500).standard_normal((3, 1, n, MODEL_DIM)).astype(np.float32)
    for count in HEAD_COUNTS:
        where, head_dim = {"heads": count, "length": n}, MODEL_DIM // count
        for quantity, heads, expected in ((FLOPS, count, 1.0), (FLOPS_ALONE, 1, 1 / count)):
            q, k, v = (split(each[..., : heads * head_dim], heads) for each in x)
            with FlopCounterMode(display=False) as counter:
                one.attend(q, k, v, causal=False, scale=head_dim**-0.5)
            if flops := counter.get_total_flops():
                yield one.row(quantity, where, expected, flops / (4 * n * n * MODEL_DIM), slack=1e-12)


EXPERIMENT = Experiment(
    about=__doc__,
    title="Heads: independence and cost",
    measure=measure,
    dtypes=("float64", "float32"),
    sees_scale=False,  # heads are independent at any scale
    sentences=(
        "Changing one head changes {changed:.0f} numbers of the others.",
        "16 heads of d_model/16 take {many:.2f} times the FLOPs of one full-width head.",
        "At n = 1024 and 8 heads, in float32, the formula in PyTorch operations takes {eager:.1f} times the memory "
        "of all scores, 8 n² numbers; PyTorch's fused kernel takes {fused:.2f} times.",
    ),
    numbers={
        "changed": measured(UNTOUCHED, max),
        "many": measured(FLOPS, heads=16),
        "eager": measured(OF_TABLE, backend="torch_eager"),
        "fused": measured(OF_TABLE, backend="torch_sdpa"),
    },
    lesson="Many heads take as many multiplications in QKᵀ and PV as one of full width, and h times the exponentials. "
    "A race decides which takes less time. A kernel that never holds the table of scores needs little memory beyond "
    "its output.",
    charts=(
        Chart(
            title="A table of scores decides the memory",
            y=f"peak memory of a call / table of scores, n = {MEMORY_LENGTH}, {MEMORY_HEADS} heads",
            by="backend",
            log_x=False,
            lines={"": of(OF_TABLE)},
            marks={"one table": 1.0},
        ),
    ),
)
