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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.problem.problem import Problem
from attnlab.theory import (
    critical_beta,
    float_format,
    jacobian_norm_squared,
    random_energy,
    underflow_threshold,
)
from attnlab.theory.exact_attention import Rows, Softmax, blocks, softmax_rows

Array = NDArray[np.float64]

#: a row is frozen where one key holds more than this: then no other key can
FROZEN = 0.5
#: a gradient is lost where the norm of the softmax's Jacobian is below this, as in the experiments
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
    seen = np.broadcast_to(True if part.visible is None else part.visible, soft.scores.shape)
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

    means = ("entropy", "largest_weight", "participation", "first", "sink", "underflow")
    return Head(
        layer=layer,
        head=head,
        beta=math.sqrt(mean("variance")),
        critical=math.sqrt(float((2 * np.log(rows["n"])).mean())),
        jacobian_norm=math.sqrt(mean("jacobian")),
        frozen_rows=float((rows["largest_weight"] > FROZEN).mean()),
        lost_rows=float((rows["jacobian"] < LOST**2).mean()),
        separators=mean("separators") if rows["marked"].any() else math.nan,
        largest_logit=float(rows["largest_logit"].max()),
        largest_product=float(rows["largest_product"].max()),
        expected_entropy=float(null.entropy.mean()),
        expected_largest_weight=float(null.largest_weight.mean()),
        expected_participation=float(null.participation.mean()),
        expected_jacobian_norm=math.sqrt(float(null.jacobian_norm_squared.mean())),
        **{name: mean(name) for name in means},
    )


# -- the null ----------------------------------------------------------------------------------------
# `attnlab.theory.random_energy` is exact and costs some hundredths of a second; a model has tens of thousands of rows.
# Here it is computed at nodes, and its logarithms are interpolated: in β by monotone cubics (Fritsch and Carlson 1980)
# through nodes that lie closest around the freezing line, in ln n linearly between nodes an octave apart, exactly at
# the n of rows that are all alike. A test holds what that costs below 1 % of each number.

#: nodes of β in units of the freezing one; above the last one the frozen law, in which everything goes with 1/β
_RATIOS = np.concatenate([np.linspace(0, 0.45, 7), np.linspace(0.5, 1.4, 16), np.geomspace(1.55, 24, 8)])
#: nodes of n are so far apart, in ln n
_STEP = math.log(2)


class Expected(NamedTuple):
    """Of each row, by the random energy model: H in nats, max p, Σ p², ‖J‖_F²."""

    entropy: Array
    largest_weight: Array
    participation: Array
    jacobian_norm_squared: Array


def expected(n: Array, beta: Array) -> Expected:
    """Of rows with n keys, 2 or more, whose logits have the standard deviation β: arrays of one shape.

    Beyond 24 β_c the entropy, 1 − max p, 1 − Σ p² and ‖J‖_F² fall as 1/β, as they do in the frozen phase.
    """
    n, beta = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(beta, np.float64))
    nodes, logs = _nodes(n), np.log(n).ravel()
    # in units of each n's own freezing β, in which the curves lie close together: (nodes, numbers, rows)
    tables = np.log([_at(node, beta.ravel() / np.sqrt(2 * logs)) for node in nodes])
    place = np.interp(logs, np.log(nodes), np.arange(len(nodes)))
    low, rows = place.astype(int), np.arange(n.size)
    high, share = np.minimum(low + 1, len(nodes) - 1), (place - low)[:, None]
    found = np.exp(tables[low, :, rows] * (1 - share) + tables[high, :, rows] * share).T
    found[0] *= logs
    return Expected(*(one.reshape(n.shape) for one in found))


def _nodes(n: Array) -> list[int]:
    """Numbers of keys at which the model is computed: all that there are, where they are few."""
    there = np.unique(n).astype(int)
    if there.size <= 4:
        return [int(one) for one in there]
    low, high = int(there[0]), int(there[-1])
    count = max(2, math.ceil(math.log(high / low) / _STEP) + 1)
    return sorted({*map(int, np.round(np.geomspace(low, high, count)))})


def _at(n: int, ratios: Array) -> Array:
    """The four numbers at β/β_c = `ratios`, the entropy over ln n: (4, ratios)."""
    from scipy.interpolate import PchipInterpolator

    last = float(_RATIOS[-1])
    found: Array = np.exp(PchipInterpolator(_RATIOS, _table(n), axis=1)(np.minimum(ratios, last)))
    fall = np.maximum(ratios / last, 1.0)
    found[0] /= fall
    found[3] /= fall
    found[1:3] = 1 - (1 - found[1:3]) / fall
    return found


@lru_cache(maxsize=256)
def _table(n: int) -> Array:
    """The logarithms of the four numbers at the nodes."""
    exact = [random_energy(n, float(ratio * critical_beta(n))) for ratio in _RATIOS]
    found = np.array([[getattr(one, name) for one in exact] for name in Expected._fields])
    found[0] /= math.log(n)
    return np.asarray(np.log(found))
