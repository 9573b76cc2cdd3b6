"""What does softmax(scale · q kᵀ) v compute, and which shapes does it take?

There is a score for every pair of query and key, s_ij = scale · q_i·k_j. The weights of a query are positive and add
up to 1 over the keys it sees: p_ij = e^{s_ij} / Σ_l e^{s_il}. Its output is the mean of the values under these
weights, o_i = Σ_j p_ij v_j (Vaswani et al. 2017, section 3.2.1).

So the numbers of queries and keys are independent, and so are the widths of keys and values. Unmasked, permuting all
tokens permutes the output. Under a causal mask the output of a prefix does not depend on what follows it.

An error may exceed its budget by five standard errors or a quarter, whichever is more, as the budget is a root mean
square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.lab.experiments import Chart, Experiment, Row, Subject, mean_over_clusters, measured, of
from attnlab.lab.observables import read_logits, weights_of
from attnlab.lab.theory import attention_under_random_inputs, error_budget
from attnlab.workload.inputs import Inputs

Arrays = list[NDArray[Any]]
_HEADS, _TOKENS, _DIM = 2, 12, 16
_SCALE = _DIM**-0.5
#: rounding error of sums of a few products in float64, with a margin
_ROUNDING = 1e-13
#: the part of the budget, a root mean square, by which the error of a right backend may exceed it
_ABOVE_BUDGET = 0.25
#: queries, keys, value dimension
_SHAPES: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "n_q = n_k": ((12, 12, _DIM),),
    "n_q ≠ n_k": ((5, 12, _DIM), (12, 5, _DIM), (1, 9, _DIM)),
    "d_v ≠ d_k": ((6, 6, 8), (6, 6, 40)),
}
ERROR = "error / error budget"


def measure(one: Subject) -> Iterator[Row]:
    """The error over its budget; in float64 also properties that hold exactly, scores of pairs, and shapes."""
    for mask in ("none", "causal"):
        error, scatter = _error(one, _drawn(one, 1, 48, 64), mask == "causal")
        room = {"standard_error": scatter, "slack": _ABOVE_BUDGET, "relation": "≤"}
        yield one.row(ERROR, {"dtype": one.dtype, "mask": mask}, 1.0, error, **room)
    if one.dtype == "float64":
        yield from _properties(one, "none")
        yield from _scores(one)
        yield from _without_softmax(one)
        yield from _shapes(one)
        yield from _properties(one, "causal")  # last: a backend may decline the mask


def _drawn(one: Subject, stream: int, queries: int, keys: int, value_dim: int = _DIM) -> Arrays:
    rng, shapes = one.rng(1600, stream), ((queries, _DIM), (keys, _DIM), (keys, value_dim))
    return [rng.standard_normal((1, _HEADS, *shape)) for shape in shapes]


def _error(one: Subject, arrays: Arrays, causal: bool = False) -> tuple[float, float]:
    """Relative error over the budget of an implementation that makes all allowed roundings; scatter of this ratio."""
    q, k, v = (array.astype(one.dtype) for array in arrays)
    asked = Inputs.of(q, k, v, dtype=one.dtype, scale=_SCALE, causal=causal)
    budget = error_budget(asked)
    off = one.attend(q, k, v, causal=causal, scale=_SCALE).astype(np.float64) - budget.output
    relative = float(np.linalg.norm(off) / np.linalg.norm(budget.output))
    return relative / budget.relative, budget.relative_scatter


def _properties(one: Subject, mask: str) -> Iterator[Row]:
    """Properties of the whole output, and the share of pairs with a weight above 0."""
    q, k, v = _drawn(one, 2, _TOKENS, _TOKENS)
    attend = partial(one.attend, causal=mask == "causal", scale=_SCALE)
    output, order, half = attend(q, k, v), one.rng(1600, 3).permutation(_TOKENS), _TOKENS // 2
    if mask == "causal":
        off = attend(*(array[:, :, :half] for array in (q, k, v))) - output[:, :, :half]
        quantity, pairs = "causal output of the first half alone − of the whole", (_TOKENS + 1) / _TOKENS / 2
    else:
        off = attend(*(array[:, :, order] for array in (q, k, v))) - output[:, :, order]
        quantity, pairs = "output of reordered tokens − reordered output", 1.0
        rows = min(len(np.unique(head, axis=0)) for head in output[0])
        yield one.row("different rows of the output", {"queries": _TOKENS}, _TOKENS, rows)
    yield one.row(quantity, {}, 0.0, np.abs(off).max(), slack=_ROUNDING)
    seen = weights_of(one.attend, q, k, scale=_SCALE, causal=mask == "causal") > 0
    yield one.row("share of pairs with a weight", {"mask": mask}, pairs, seen.mean(), slack=1e-12)


def _scores(one: Subject) -> Iterator[Row]:
    """The table of scores is not symmetric; a score is a length times a cosine."""
    heads, n = 32, 12
    q, other = one.rng(1600, 4).standard_normal((2, 1, heads, n, _DIM))
    for keys, k, expected in (("k = q", q, 0.0), ("independent", other, 2 * (n - 1) / n)):
        s = read_logits(one.attend, q, k, scale=_SCALE)[0]
        squares = ((s - s.swapaxes(-1, -2)) ** 2).mean(axis=-1)
        yield one.mean("‖S − Sᵀ‖² / n²", {"keys are": keys}, squares, expected, _ROUNDING)
    for lengths, long in (("equal", 1.0), ("1 and 4", 4.0)):
        # the query lies along the first axis, one key in its direction, and one key at 60°
        two = np.array([[1.0, 0.0], [long / 2, long * math.sqrt(3) / 2]])[None, None]
        weight = weights_of(one.attend, two[:, :, :1], two, scale=1.0)[0, 0, 0, 0]
        quantity, expected = "weight of the better aligned of two keys", 1 / (1 + math.exp(long / 2 - 1))
        yield one.row(quantity, {"lengths": lengths}, expected, weight, slack=_ROUNDING)


def _without_softmax(one: Subject) -> Iterator[Row]:
    """The size of Σ_j s_ij v_j relative to the output. The sum of n terms of variance 1 has n, the output has E Σp²."""
    for keys in (16, 128):
        rng = one.rng(1650, keys)
        q, k, v = (rng.standard_normal((1, 32, n, _DIM)) for n in (8, keys, keys))
        summed = (read_logits(one.attend, q, k, scale=_SCALE) @ v)[0] ** 2
        output = one.attend(q, k, v, causal=False, scale=_SCALE)[0] ** 2
        exact = attention_under_random_inputs(keys, _DIM, _SCALE).participation
        ratio = math.sqrt(float(np.mean(summed) / np.mean(output)))
        means = [mean_over_clusters(squares.mean(axis=-1)) for squares in (summed, output)]
        error = 0.5 * ratio * math.hypot(*(error / mean for mean, error in means))
        quantity, expected = "rms of Σ s v / rms of Σ p v", math.sqrt(keys / exact)
        yield one.row(quantity, {"keys": keys}, expected, ratio, standard_error=error)


def _shapes(one: Subject) -> Iterator[Row]:
    """The share of shapes for which the output is right; arrays that do not fit must be refused."""
    for stream, (label, sizes) in enumerate(_SHAPES.items()):
        right: list[bool] = []
        for size in sizes:
            try:
                error, scatter = _error(one, _drawn(one, 10 + stream, *size))
            except Declined:
                continue
            right.append(error <= 1 + max(5 * scatter, _ABOVE_BUDGET))
        if right:
            yield one.row("share answered right", {"shapes": label}, 1.0, float(np.mean(right)))
    q, k, v = _drawn(one, 20, 6, 6)
    for label, arrays in (("d_q ≠ d_k", (q, k[..., :12], v)), ("n_k ≠ n_v", (q, k, v[:, :, :4]))):
        try:
            one.attend(*arrays, causal=False, scale=_SCALE)
            answered = 1.0
        except ValueError:
            answered = 0.0
        yield one.row("share answered", {"shapes": label}, 0.0, answered)


EXPERIMENT = Experiment(
    about=__doc__,
    title="The formula, index by index",
    measure=measure,
    dtypes=("float64", "float32"),
    sentences=(
        "The largest error is {worst:.2f} of its error budget.",
        "Without the softmax, the sum Σ_j s_ij v_j over 128 keys is {ratio:.0f} times the size of the output "
        "(predicted: 78).",
    ),
    numbers={"worst": measured(ERROR, max), "ratio": measured("rms of Σ s v / rms of Σ p v", keys=128)},
    lesson="The table of scores is not symmetric in general. It is if queries and keys are equal. For one query a "
    "score is the length of the key times a cosine, times a constant. So a longer key can outweigh a better "
    "aligned one. The output is linear in the values. It is never longer than the longest of them. In float64 "
    "numpy_vectorized can have an error of 0, because the reference is computed in NumPy too.",
    charts=(
        Chart(
            title="No error above its error budget",
            y="relative error / error budget (bar: the budget)",
            by="backend",
            log_x=False,
            lines={dtype: of(ERROR, dtype=dtype, mask="none") for dtype in ("float64", "float32")},
            limits=(0.0, 1.4),
        ),
    ),
)
