"""Which tokens see which, and how much of a distant one arrives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import allowed, distance, weights_of
from attnlab.numerics.black_box import Attend
from attnlab.theory import largest_possible_weight, required_gap

THEME = Theme("Reach")
_N = 24


@THEME.claim(
    "every-token-sees-every",
    "S3:11; S3:30; S3:106",
    kind="identity",
    says="Each token sees all others, however far apart they are.",
    truth="Without a mask, and then so blindly that reordering the tokens reorders the output and "
    "does nothing else. Under a causal mask token i sees tokens 1 to i: (n + 1)/(2n) of all "
    "pairs.",
    condition="no mask",
    reference="Vaswani et al. 2017, §3.2.3; Lee et al. 2019 (1810.00825)",
)
def every_token_sees_every(lab: Laboratory) -> Sequence[Check]:
    q, k, v = (lab.normal(1, 2, _N, 16, stream=stream) for stream in (1, 2, 3))
    masked = lab.part("causal", True)
    order = lab.rng(4).permutation(_N)
    open_pairs = lab.worst(lambda attend: -_seen(attend, q, k, causal=False))
    masked_pairs = lab.worst(lambda attend: -_seen(attend, q, k, causal=masked))
    turned = lab.worst(lambda attend: _equivariance(attend, q, k, v, order))
    prefix = lab.worst(lambda attend: _prefix(attend, q, k, v))
    rounding = allowed(q, k, v, times=2)
    return [
        claimed("share of pairs with a weight, no mask", -open_pairs.figure, "=", 1, where=open_pairs.where),
        beyond(
            "share of pairs with a weight, causal mask",
            -masked_pairs.figure,
            "=",
            1,
            where=masked_pairs.where,
        ),
        right(
            "share of pairs with a weight, causal mask",
            -masked_pairs.figure,
            "=",
            (_N + 1) / (2 * _N),
            slack=1e-12,
            where=f"n = {_N}; (n + 1)/2n",
        ),
        right(
            "reordered input against reordered output, relative",
            turned.figure,
            "≤",
            rounding,
            where=turned.where,
        ),
        right(
            "first half alone against first half of the whole, causal",
            prefix.figure,
            "≤",
            allowed(q, k, v, causal=True, times=2),
            where=prefix.where,
        ),
    ]


def _seen(attend: Attend, q: Array, k: Array, *, causal: bool) -> float:
    return float((weights_of(attend, q, k, scale=0.25, causal=causal) > 0).mean())


def _equivariance(attend: Attend, q: Array, k: Array, v: Array, order: np.ndarray) -> float:
    whole = attend(q, k, v, causal=False, scale=0.25)
    turned = attend(q[:, :, order], k[:, :, order], v[:, :, order], causal=False, scale=0.25)
    return distance(turned, whole[:, :, order])


def _prefix(attend: Attend, q: Array, k: Array, v: Array) -> float:
    half = _N // 2
    whole = attend(q, k, v, causal=True, scale=0.25)
    part = attend(q[:, :, :half], k[:, :, :half], v[:, :, :half], causal=True, scale=0.25)
    return distance(part, whole[:, :, :half])


@THEME.claim(
    "no-information-loss",
    "S3:105",
    kind="identity",
    says="Attention reaches over any distance without losing information.",
    truth="No weight exceeds 1/(1 + (n − 1)e^−Δ), Δ the gap from the largest to the smallest logit:"
    " with bounded logits what one token sends fades as 1/n. A weight of .9 needs a gap of ln"
    " 9(n − 1).",
    reference="Veličković et al. 2024 (2410.01104)",
)
def no_information_loss(lab: Laboratory) -> Sequence[Check]:
    gap = lab.part("gap", 8.0)
    checks = []
    for keys in (64, 1024, 16384):
        received = lab.worst(partial(_negative_signal, keys=keys, gap=gap))
        most = lab.worst(partial(_signal, keys=keys, gap=gap))
        sharp = lab.worst(partial(_signal, keys=keys, gap=required_gap(keys, 0.9)))
        where = f"n = {keys}, all logits 0 but one of {gap:g}; {most.where}"
        checks += [
            claimed(
                "share of one distant token's value in the output", -received.figure, "≥", 0.9, where=where
            ),
            right(
                "share of one distant token's value in the output",
                most.figure,
                "=",
                largest_possible_weight(keys, gap),
                slack=1e-10,
                where="largest possible weight",
            ),
            control(
                "the share with a gap of ln 9(n − 1)", sharp.figure, "=", 0.9, slack=1e-10, where=sharp.where
            ),
        ]
    return checks


def _signal(attend: Attend, *, keys: int, gap: float) -> float:
    """The first key's logit is `gap`, all others' are 0; its value is 1, theirs are 0."""
    q, k, v = np.zeros((1, 1, 1, 8)), np.zeros((1, 1, keys, 8)), np.zeros((1, 1, keys, 8))
    q[..., 0], k[0, 0, 0, 0], v[0, 0, 0] = 1, gap, 1
    return float(attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0])


def _negative_signal(attend: Attend, *, keys: int, gap: float) -> float:
    return -_signal(attend, keys=keys, gap=gap)


@THEME.claim(
    "match-means-high-score",
    "S2:13",
    kind="identity",
    says="The better a key matches the query, the higher its score.",
    truth="The score is ‖q‖‖k‖cos θ: a long key can outrank a better aligned one.",
    condition="keys of equal length",
    reference="Luong et al. 2015, §3.1",
)
def match_means_high_score(lab: Laboratory) -> Sequence[Check]:
    q, k = lab.normal(1, 1, 32, 8, stream=1), lab.normal(1, 1, 16, 8, stream=2)
    lengths = lab.part("lengths", lambda drawn: drawn)(np.linalg.norm(k, axis=-1, keepdims=True))
    direction = k / np.linalg.norm(k, axis=-1, keepdims=True)
    cosine = (q / np.linalg.norm(q, axis=-1, keepdims=True)) @ direction.swapaxes(-1, -2)
    checks = []
    for role, keys, what in (
        (claimed, 2 * direction, "keys of length 2"),
        (beyond, lengths * direction, "normal keys"),
    ):
        worst = lab.worst(partial(_inversions, q=q, k=keys, order=cosine))
        checks.append(
            role(
                "share of key pairs that the weights rank against their cosine",
                worst.figure,
                "=",
                0,
                where=f"{what}; {worst.where}",
            )
        )
    product = np.linalg.norm(q, axis=-1)[..., None] * lengths[..., 0][:, :, None] * cosine
    worst = lab.worst(partial(_inversions, q=q, k=lengths * direction, order=product))
    return [*checks, right("ranked against ‖q‖‖k‖cos θ", worst.figure, "=", 0, where=worst.where)]


def _inversions(attend: Attend, *, q: Array, k: Array, order: Array) -> float:
    p = weights_of(attend, q, k, scale=8**-0.5)
    weights, wanted = (x[..., :, None] - x[..., None, :] for x in (p, order))
    return float((weights * wanted < 0).mean())
