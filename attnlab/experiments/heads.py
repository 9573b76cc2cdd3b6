"""What each head's softmax does on the inputs that a model gave it, in float64, a block of rows at a time.

A row is one query: with logits s_j over the keys that it sees, weights p = softmax(s), n of them (a learned sink is
one more logit and weight). Of each head:

    β² = mean over rows of Var_j(s_j)               spread of the logits within a row; a row's mean moves no weight
    H = −Σ p ln p, max p, Σ p²                      means over rows
    ‖J‖_F², J = diag p − ppᵀ                        what a gradient on the weights becomes on the logits

and beside them what the random energy model (`attnlab.theory.random_energy`) expects of rows of as many independent
normal logits with the same β: the mean over the head's own rows, each with its own n and β. What a head is apart from
that, training made. Rows that see one key have no spread and no choice, and count nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.null import expected
from attnlab.problem.problem import Problem
from attnlab.theory import float_format, jacobian_norm_squared, underflow_threshold
from attnlab.theory.exact_attention import Rows, Softmax, blocks, softmax_rows

Array = NDArray[np.float64]

#: a row is frozen where one key holds more than this: then no other key can
FROZEN = 0.5
#: a gradient is lost where the norm of the softmax's Jacobian is below this, as in the laboratory
LOST = 1e-3


@dataclass(frozen=True)
class Head:
    """One head of one call, means over its rows unless said otherwise; entropies in nats, the rest dimensionless.

    beta : root mean square, over rows, of the logits' standard deviation within a row. critical : β_c = √(2 ln n), of
    rows of different n the root mean square. frozen_rows : share with a weight above 1/2. lost_rows : share with ‖J‖_F
    below 1e-3. jacobian_norm : root mean square of ‖J‖_F. first, separators : mass on the first token, and on special
    tokens after it; `nan` where there are none. sink : mass on a learned sink. largest_logit : max |s|, masked keys
    aside. largest_product : max |q·k|, before the scale. underflow : share of the weights that are 0 in float16.
    expected_... : by the random energy model.
    """

    layer: int
    head: int
    beta: float
    critical: float
    entropy: float
    largest_weight: float
    participation: float
    jacobian_norm: float
    frozen_rows: float
    lost_rows: float
    first: float
    separators: float
    sink: float
    largest_logit: float
    largest_product: float
    underflow: float
    expected_entropy: float
    expected_largest_weight: float
    expected_participation: float
    expected_jacobian_norm: float

    @property
    def beyond(self) -> bool:
        """Whether its logits are spread so far that as many independent ones would be frozen."""
        return self.beta > self.critical

    @property
    def departure(self) -> float:
        """Entropy less that of the random energy model, in nats: below 0 where it attends more sharply than chance."""
        return self.entropy - self.expected_entropy

    @property
    def float16_share(self) -> float:
        """Of float16's largest number, what the largest product before the scale takes."""
        return self.largest_product / float_format("float16").largest


def heads_of(layer: int, problem: Problem, separators: Sequence[int] = ()) -> list[Head]:
    """Every head of one call, averaged over the batch. separators : positions of keys.

    Raises ValueError where no row sees two keys.
    """
    shape = problem.shape
    rows: list[list[dict[str, Array]]] = [[] for _ in range(shape.heads)]
    marked = np.zeros(shape.keys, bool)
    marked[list(separators)] = True
    for part in blocks(problem):
        found = _of_rows(part, softmax_rows(part), marked, shape.keys)
        for place, head in enumerate(range(*part.at[1].indices(shape.heads))):
            rows[head].append({name: array[:, place].reshape(-1) for name, array in found.items()})
    return [
        _head(layer, head, {name: np.concatenate([one[name] for one in parts]) for name in parts[0]})
        for head, parts in enumerate(rows)
    ]


def _of_rows(part: Rows, soft: Softmax, marked: NDArray[np.bool_], keys: int) -> dict[str, Array]:
    """One number a row of a block, each (batches, heads, rows)."""
    seen = (
        np.ones(soft.scores.shape, bool)
        if part.visible is None
        else np.broadcast_to(part.visible, soft.scores.shape)
    )
    n = seen.sum(axis=-1)
    mean = np.where(seen, soft.scores, 0.0).sum(axis=-1, keepdims=True) / np.maximum(n, 1)[..., None]
    variance = np.where(seen, (soft.scores - mean) ** 2, 0.0).sum(axis=-1) / np.maximum(n, 1)
    p = soft.weights
    surprise = np.where(p > 0, -p * np.log(np.where(p > 0, p, 1.0)), 0.0)
    under = seen & (soft.fall < -underflow_threshold("float16"))
    nothing = np.zeros(n.shape)
    return {
        "n": n.astype(np.float64),
        "variance": variance,
        "entropy": surprise.sum(axis=-1),
        "largest_weight": p.max(axis=-1),
        "participation": (p * p).sum(axis=-1),
        "jacobian": jacobian_norm_squared(np.where(n[..., None] > 0, p, 1.0 / p.shape[-1])),
        "first": p[..., 0],
        "separators": p[..., :keys][..., marked].sum(axis=-1),
        "sink": p[..., keys] if part.sink else nothing,
        "largest_logit": np.where(seen, np.abs(soft.scores), 0.0)[..., :keys].max(axis=-1),
        "largest_product": (np.abs(soft.raw[..., :keys]) / abs(part.scale)).max(axis=-1)
        if part.scale
        else nothing,
        "underflow": under.sum(axis=-1) / np.maximum(n, 1),
        "marked": np.broadcast_to(float(marked.any()), n.shape),
    }


def _head(layer: int, head: int, rows: dict[str, Array]) -> Head:
    chosen = rows["n"] > 1
    if not chosen.any():
        raise ValueError(
            "every query sees one key or none: the softmax has nothing to choose; give a longer text"
        )
    rows = {name: array[chosen] for name, array in rows.items()}
    null = expected(rows["n"], np.sqrt(rows["variance"]))

    def mean(name: str) -> float:
        return float(rows[name].mean())

    return Head(
        layer=layer,
        head=head,
        beta=math.sqrt(mean("variance")),
        critical=_critical(rows["n"]),
        entropy=mean("entropy"),
        largest_weight=mean("largest_weight"),
        participation=mean("participation"),
        jacobian_norm=math.sqrt(mean("jacobian")),
        frozen_rows=float((rows["largest_weight"] > FROZEN).mean()),
        lost_rows=float((rows["jacobian"] < LOST**2).mean()),
        first=mean("first"),
        separators=mean("separators") if rows["marked"].any() else math.nan,
        sink=mean("sink"),
        largest_logit=float(rows["largest_logit"].max()),
        largest_product=float(rows["largest_product"].max()),
        underflow=mean("underflow"),
        expected_entropy=float(null.entropy.mean()),
        expected_largest_weight=float(null.largest_weight.mean()),
        expected_participation=float(null.participation.mean()),
        expected_jacobian_norm=math.sqrt(float(null.jacobian_norm_squared.mean())),
    )


def _critical(n: Array) -> float:
    """√(2 ln n), of rows of different n the root mean square."""
    return math.sqrt(float((2 * np.log(n)).mean()))


def beyond(heads: Iterable[Head]) -> list[Head]:
    """Those beyond the freezing line, the furthest first."""
    return sorted((one for one in heads if one.beyond), key=lambda one: one.critical / one.beta)
