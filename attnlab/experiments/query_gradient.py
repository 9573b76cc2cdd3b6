"""The gradient that reaches a query, whole: dL/dq = scale · Σ_j (Jg)_j k_j, in which the scale is a factor.

Of a row over standard normal inputs, with the weights' gradient g of independent unit components, three draws make its
length: |dL/dq|² = scale² (‖Jg‖² χ²_{d_k − 1} + (Σ_j (Jg)_j x_j)²), with x_j the key's component along the query, of
which the weights are made, and the others independent of all. Rows are drawn from that law, for what has no integral.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab.backends.contender import in_this_process
from attnlab.errors import Declined
from attnlab.experiments.estimates import statistic_over_clusters
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.jacobian_sampling import Estimate
from attnlab.experiments.panels import measured, numbers
from attnlab.experiments.responses import Array
from attnlab.experiments.survey import OpenBackend, generator
from attnlab.figures import BLACK, BLUE, ORANGE, entitle, note, powers_of_two
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD_DIMS, KEYS = (16, 64, 256, 1024), 1024
_HEADS, _QUERIES = 16, 32
#: rows drawn from the law, and how many at once
_ROWS, _AT_ONCE = 12_288, 512
#: a median is that of a sample of this many parts, which tell its error
_PARTS = 24


def _rms(norms: Array) -> float:
    return math.sqrt(float(np.mean(norms**2)))


def _median(norms: Array) -> float:
    return float(np.median(norms))


STATISTICS: Mapping[str, Callable[[Array], float]] = {"rms": _rms, "median": _median}


def quantity(statistic: str) -> str:
    """The name of the rows."""
    return f"{statistic} |dL/dq|, unscaled over scaled"


def whole(one: OpenBackend, seed: int, folders: Sequence[Path | str]) -> Iterator[Row]:
    """Root mean square and median of |dL/dq|, unscaled over scaled, by automatic differentiation through one backend.

    Nothing of a backend without it. Predictions are sampled, their own error included.
    """
    for head_dim in HEAD_DIMS:
        try:
            pairs = _measured(one, seed, head_dim, folders)
        except Declined:
            return
        where: Where = {"backend": one.name, "keys": KEYS, "head_dim": head_dim}
        for name, statistic in STATISTICS.items():
            found, error = statistic_over_clusters(pairs, _ratio(statistic))
            expected = predicted(name, head_dim)
            error = math.hypot(error, expected.error)
            yield Row.compare(quantity(name), where, expected.value, found, standard_error=error)


def _ratio(statistic: Callable[[Array], float]) -> Callable[[Array], float]:
    """That of the first half of the columns over that of the second."""

    def of(pairs: Array) -> float:
        unscaled, scaled = np.split(pairs, 2, axis=1)
        return statistic(unscaled) / statistic(scaled)

    return of


def _measured(one: OpenBackend, seed: int, head_dim: int, folders: Sequence[Path | str]) -> Array:
    """|dL/dq|, (heads, queries unscaled and queries scaled), on the same draws. Raises Declined."""
    rng = generator(seed, 850, head_dim)
    q, k = (rng.standard_normal((1, _HEADS, n, head_dim)) for n in (_QUERIES, KEYS))
    # values and the output's gradient in one dimension: the weights' gradient is then the values
    v, upstream = np.zeros_like(k), np.zeros_like(q)
    v[..., 0], upstream[..., 0] = rng.standard_normal(k.shape[:-1]), 1.0
    norms = []
    for scale in (1.0, head_dim**-0.5):
        problem = Problem.of(q, k, v, scale=scale, output_gradient=upstream)
        workload = Workload.of_problem(problem, direction="backward")
        backend = in_this_process(one.name, folders)
        gradient = backend.named(workload, backend.bind(workload, problem)())["query gradient"]
        norms.append(np.linalg.norm(gradient.astype(np.float64)[0], axis=-1))
    return np.concatenate(norms, axis=1)


@lru_cache(maxsize=64)
def predicted(name: str, head_dim: int) -> Estimate:
    """The statistic of |dL/dq| called `name`, unscaled over scaled, for rows of `KEYS` keys, from rows of the law."""
    pairs = np.stack([_drawn(head_dim, scale).reshape(_PARTS, -1) for scale in (1.0, head_dim**-0.5)], axis=1)
    return Estimate(*statistic_over_clusters(pairs.reshape(_PARTS, -1), _ratio(STATISTICS[name])))


@lru_cache(maxsize=8)
def _drawn(head_dim: int, scale: float) -> Array:
    """|dL/dq| of `_ROWS` rows, the same in every run and, but for what the scale does, with every scale."""
    rng = generator(0, 860, head_dim)
    found = []
    for _ in range(_ROWS // _AT_ONCE):
        length = np.sqrt(rng.chisquare(head_dim, (_AT_ONCE, 1)))
        x, g = rng.standard_normal((2, _AT_ONCE, KEYS))
        logits = scale * length * x
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        passed = weights * (g - (weights * g).sum(axis=1, keepdims=True))
        across = (passed**2).sum(axis=1) * rng.chisquare(head_dim - 1, _AT_ONCE)
        found.append(scale * np.sqrt(across + (passed * x).sum(axis=1) ** 2))
    return np.concatenate(found)


def told(rows: Sequence[Row]) -> str:
    """The ratios in a sentence, with a space after it; nothing where there are none."""
    mean, median = (pick(rows, quantity(name)) for name in STATISTICS)
    if not (mean and median):
        return ""
    listed = [
        ", ".join(f"{row.measured:.3g} ± {row.standard_error:.2g}" for row in found)
        for found in (mean, median)
    ]
    dims = ", ".join(str(row.where["head_dim"]) for row in mean)
    return (
        f"Of the whole gradient dL/dq, in which the scale is a factor, the root mean square unscaled is {listed[0]} "
        f"times the scaled one at d_k = {dims}, and the median {listed[1]} times. "
    )


def draw(panel: Axes, rows: Sequence[Row]) -> None:
    """Both ratios against d_k."""
    entitle(
        panel, "The whole gradient, unscaled over scaled", "head dimension d_k", "|dL/dq| unscaled / scaled"
    )
    powers_of_two(panel, HEAD_DIMS)
    panel.set_yscale("log")
    panel.axhline(1.0, color=BLACK, linewidth=1.0)
    for name, colour, text in zip(
        STATISTICS, (BLUE, ORANGE), ("root mean square", "median row"), strict=True
    ):
        mine = pick(rows, quantity(name))
        if mine:
            panel.plot(
                numbers(mine, "head_dim"), [row.predicted for row in mine], color=colour, linewidth=1.8
            )
            measured(panel, mine, "head_dim", colour)
            at = mine[1]
            above = 1.35 if name == "rms" else 0.4
            note(panel, float(at.where["head_dim"]), above * at.predicted, text, colour, ha="center")
