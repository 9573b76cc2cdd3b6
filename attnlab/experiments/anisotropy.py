"""Tokens that share a direction: the variance of the scores over the weights, and the one within a row.

A token is √(a d_model) u + √(1 − a) z with one unit vector u for all and z standard normal, so that E|x|² = d_model
whatever a is, and with projections of variance 1/d_model a scaled score has variance 1 over the weights. Within a row
the shared part of the keys adds one number to all scores, which the softmax takes away again: what is left has variance
1 − a. Trained tokens share much (Ethayarajh 2019, 1909.00512, measures cosines up to .99 between unrelated words).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from attnlab.experiments.estimates import mean_row
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.responses import Array, read_logits, weights_of
from attnlab.experiments.survey import OpenBackend, generator

#: of |x|², in the shared direction
SHARES = (0.0, 0.5, 0.8, 0.95)
#: draws of the projections, tokens that ask and that are asked, dimensions of a token and of a head
_DRAWS, _QUERIES, _KEYS, _MODEL_DIM, _HEAD_DIM = 96, 12, 24, 128, 32
OVER_WEIGHTS, IN_ROW = "variance of the scores over the weights", "variance of the scores within a row"
UNCHANGED = "largest change of a weight without the shared part of the keys"
#: of weights in float64, whose scores are of order 10
_ROUNDING = 1e-12


def shared_direction(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Both variances, read out of a backend's weights; and its weights with the shared part of the keys taken away.

    Each draw of tokens and projections is a cluster, and a head of the call.
    """
    rng = generator(seed, 1900)
    direction = rng.standard_normal((_DRAWS, 1, _MODEL_DIM))
    direction *= math.sqrt(_MODEL_DIM) / np.linalg.norm(direction, axis=-1, keepdims=True)
    own = rng.standard_normal((_DRAWS, _QUERIES + _KEYS, _MODEL_DIM))
    w_q, w_k = rng.standard_normal((2, _DRAWS, _MODEL_DIM, _HEAD_DIM)) / math.sqrt(_MODEL_DIM)
    scale = _HEAD_DIM**-0.5

    def weights(q: Array, k: Array) -> Array:
        return weights_of(one.attend, q[None], k[None], scale=scale)

    for share in SHARES:
        x = math.sqrt(share) * direction + math.sqrt(1 - share) * own
        q, k = x[:, :_QUERIES] @ w_q, x[:, _QUERIES:] @ w_k
        scores = read_logits(one.attend, q[None], k[None], scale=scale)[0]
        where: Where = {"backend": one.name, "shared": share}
        yield mean_row(OVER_WEIGHTS, where, (scores**2).reshape(_DRAWS, -1), predicted=1.0)
        yield mean_row(IN_ROW, where, scores.var(axis=-1, ddof=1), predicted=1 - share)
        alone = math.sqrt(1 - share) * own[:, _QUERIES:] @ w_k
        changed = float(np.abs(weights(q, k) - weights(q, alone)).max())
        yield Row.compare(UNCHANGED, where, 0.0, changed, slack=_ROUNDING)


def told(rows: Sequence[Row]) -> str:
    """Both variances in a sentence, with a space after it; nothing where there are none."""
    over, within = (pick(rows, quantity, shared=0.8) for quantity in (OVER_WEIGHTS, IN_ROW))
    if not (over and within):
        return ""
    return (
        f"Of tokens with {100 * SHARES[2]:.0f} % of |x|² in one shared direction the scaled scores have variance "
        f"{over[0].measured:.2f} over the weights and {within[0].measured:.2f} within a row (predicted "
        f"{over[0].predicted:g} and {within[0].predicted:.2g}), which alone the softmax sees: its weights are those of "
        "the keys without that direction. "
    )
