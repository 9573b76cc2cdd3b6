"""The null of a diagnosis: rows of independent normal logits, as many and as spread as those that were measured.

`attnlab.theory.random_energy` is exact and costs some hundredths of a second; a model has tens of thousands of rows.
Here it is computed at nodes, and its logarithms are interpolated: in β by monotone cubics (Fritsch and Carlson 1980)
through nodes that lie closest around the freezing line, in ln n linearly between nodes an octave apart, exactly at the
n of rows that are all alike. A test holds what that costs below 1 % of each number.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.theory import critical_beta, random_energy

Array = NDArray[np.float64]

#: nodes of β in units of the freezing one; above the last one the frozen law, in which everything goes with 1/β
_RATIOS = np.concatenate([np.linspace(0, 0.45, 7), np.linspace(0.5, 1.4, 16), np.geomspace(1.55, 24, 8)])
#: nodes of n are so far apart, in ln n
_STEP = math.log(2)
_NAMES = ("entropy", "largest_weight", "participation", "jacobian_norm_squared")


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
    logs = np.log(n)
    nodes = _nodes(n)
    found = np.empty((len(_NAMES), n.size))
    place = np.clip(np.searchsorted(np.log(nodes), logs.ravel(), side="right") - 1, 0, max(0, len(nodes) - 2))
    for at in np.unique(place):
        mine = place == at
        low, high = nodes[at], nodes[min(at + 1, len(nodes) - 1)]
        share = (logs.ravel()[mine] - math.log(low)) / math.log(high / low) if high > low else 0.0
        # in units of each n's own freezing β, in which the curves lie close together
        ratios = beta.ravel()[mine] / np.sqrt(2 * logs.ravel()[mine])
        found[:, mine] = np.log(_at(low, ratios)) * (1 - share)
        if high > low:
            found[:, mine] += np.log(_at(high, ratios)) * share
    found = np.exp(found)
    found[0] *= logs.ravel()
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
    found = np.array([[getattr(one, name) for one in exact] for name in _NAMES])
    found[0] /= math.log(n)
    return np.asarray(np.log(found))
