"""Do the gradients through an unscaled softmax vanish: on average, or in a tail of the rows?

Let g be ∂L/∂p of a row, and J = diag p − ppᵀ the Jacobian of the softmax. The gradient that reaches the logits is Jg.
For a g of independent components of mean 0 and unit variance that does not depend on p, E|Jg|² = ‖J‖² = S₂ − 2S₃ + S₂²
with S_k = Σp^k. In long rows it is small at both ends: (n − 1)/n² for equal weights, and 0 if one key has all the
weight. Over rows of 1024 keys its mean is largest, .093, at β = 5.5, 1.5 times the freezing β
(attnlab.theory.random_energy).

So at d_k = 64 the unscaled rows have the larger mean square at n = 1024, and the smaller one below n = 27 (in theory:
attnlab.theory.attention_under_random_inputs). Some rows pass on next to nothing, and with d_k their share grows. The
mean square is an exact integral. Shares are sampled from the random energy model, and have a sampling error. "Next to
nothing" is a norm below 1e-3 here. The figure shows other thresholds as well. All of this is for standard normal
inputs, before any training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from attnlab.errors import Declined
from attnlab.lab.experiments import Array, Chart, Experiment, Row, Subject, mean_over_clusters, measured, of
from attnlab.lab.theory import attention_under_random_inputs
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import Workload

_HEAD_DIM, _KEYS = 64, 1024
#: heads, queries and keys; the same for a slow backend; and for short rows
_SIZES, _SLOW_SIZES, _SHORT = (16, 48, _KEYS), (16, 8, 64), (64, 16, 8)
_SCALES: Mapping[str, float] = {"unscaled": 1.0, "scaled": _HEAD_DIM**-0.5}
#: a row with a smaller Jacobian norm than this passes on almost no gradient
SMALL = 1e-3
_NORMS = (1e-5, 1e-4, SMALL, 1e-2, 4e-2, 4.5e-2, 5e-2, 5.5e-2, 6e-2, 7e-2, 1e-1, 3e-1)
#: d_k at which the share of rows with almost no gradient is measured, unscaled; n of the mean square norm, scaled
_HEAD_DIMS, _LENGTHS = (64, 256, 1024, 4096), (256, 1024, 16384)
#: the dimension of queries whose length is given; `observe` adds two, which makes an aligned width
_FEW = 14
#: absolute error of a squared norm that is measured through a backend
_SQUARE_SLACK = 1e-12
#: rows that are drawn from the law, and copies of each
_LAW_ROWS, _COPIES = 2048, 32
#: keys, head dimension and scale of a row
_Law = tuple[int, int, float]
SQUARE, RATIO, BELOW = "mean ‖J‖²", "rms ‖J‖, unscaled over scaled", "share of rows below"
AGAINST_DIM = "share of rows below 1e-3 against d_k"


def measure(one: Subject) -> Iterator[Row]:
    """Norms of the rows' Jacobians; gradients at small values V; through the leading backend, norms against sizes."""
    for heads, queries, keys in (_SLOW_SIZES if one.slow else _SIZES, _SHORT):
        means = list[Row]()
        for scaling, scale in _SCALES.items():
            seen, law = (
                one.observed((keys,), (heads, queries, keys), _HEAD_DIM, scale),
                (keys, _HEAD_DIM, scale),
            )
            where = {"scaling": scaling, "keys": keys, "head_dim": _HEAD_DIM}
            means += one.means(where, seen, attention_under_random_inputs(*law), SQUARE, slack=_SQUARE_SLACK)
            for norm in _NORMS:
                found = np.sqrt(seen.jacobian_norm_squared[0])
                yield _share_row(one, BELOW, {**where, "norm": norm}, found, norm, law)
        yield from means
        unscaled, scaled = means
        ratio, expected = (
            math.sqrt(getattr(unscaled, name) / getattr(scaled, name)) for name in ("measured", "predicted")
        )
        error = ratio * math.hypot(*(row.standard_error / row.measured for row in means)) / 2
        yield one.row(RATIO, {"keys": keys, "head_dim": _HEAD_DIM}, expected, ratio, standard_error=error)
    yield from small_values(one)
    if one.lead:
        yield from _against_sizes(one)


def _share_row(
    one: Subject, quantity: str, where: Mapping[str, Any], norms: Array, below: float, law: _Law
) -> Row:
    """The share of the measured norms that are smaller than `below`, compared with the predicted share.

    If the share is small, few rows or none are counted, and their spread does not show the error. So the error is at
    least that of the predicted share, and a difference of four rows is always allowed.
    """
    expected, expected_error = mean_over_clusters(_norms(*law) < below)
    found, error = mean_over_clusters(norms < below)
    error = max(error, math.sqrt(expected * (1 - expected) / norms.size))
    room = {"standard_error": math.hypot(error, expected_error), "slack": 4 / norms.size}
    return one.row(quantity, where, expected, found, **room)


def small_values(one: Subject) -> Iterator[Row]:
    """Norms of dL/dq, dL/dk and dL/dV with V/1000 over those with V, for the same gradient of the output."""
    q, k, v, upstream = one.rng(710).standard_normal((4, 1, 2, 24, 16))
    both = []
    for by in (1, 1000):
        inputs = Inputs.of(q, k, v / by, scale=0.25, output_gradient=upstream)
        workload = Workload.of_inputs(inputs, direction="backward")
        try:
            both.append(one.backend.named(workload, one.backend.bind(workload, inputs)()))
        except Declined:  # a backend without gradients gets no rows
            return
    for wanted, expected in (("query", 1e-3), ("key", 1e-3), ("value", 1.0)):
        whole, small = (float(np.linalg.norm(found[f"{wanted} gradient"])) for found in both)
        quantity = "norm of the gradient at V/1000 over at V"
        yield one.row(quantity, {"of": wanted}, expected, small / whole, slack=1e-10 * expected)


def _against_sizes(one: Subject) -> Iterator[Row]:
    """Rows with almost no gradient against d_k, unscaled, n = 1024; the mean square norm against n, scaled, d_k = 64.

    Given its query, a row has independent normal logits, whose standard deviation depends on the query's length alone.
    So queries of few dimensions, with lengths from the χ law of d_k dimensions, give rows of the same law faster.
    """
    for head_dim in _HEAD_DIMS:
        lengths = np.sqrt(one.rng(820, head_dim).chisquare(head_dim, (1, 32, 128, 1)))
        seen = one.observed((825, head_dim), (32, 128, _KEYS), _FEW, 1.0, lengths)
        where, norms = {"scaling": "unscaled", "head_dim": head_dim}, np.sqrt(seen.jacobian_norm_squared[0])
        yield _share_row(one, AGAINST_DIM, where, norms, SMALL, (_KEYS, head_dim, 1.0))
    scale = _HEAD_DIM**-0.5
    for keys in _LENGTHS:
        lengths = np.sqrt(one.rng(828, keys).chisquare(_HEAD_DIM, (1, 12, 24, 1)))
        seen = one.observed((830, keys), (12, 24, keys), _FEW, scale, lengths)
        exact, where = attention_under_random_inputs(keys, _HEAD_DIM, scale), {"against": "n", "keys": keys}
        yield from one.means(where, seen, exact, SQUARE, slack=_SQUARE_SLACK)


# -- the law of ‖J‖_F of a row over standard normal inputs, which has no integral ---------------------
#
# Rows of the random energy model are drawn. The two variables that decide most of ‖J‖ are stratified. For each row, β
# is drawn from one stratum of its law. For each copy of the row, the largest logit, a normal number above the second
# largest if all others are given, is drawn from one stratum of its law. This makes the error about ten times smaller.


@lru_cache(maxsize=16)
def _norms(keys: int, head_dim: int, scale: float) -> Array:
    """‖J‖_F of rows, (rows, copies), the same in every run; rows are independent of each other.

    Let w_j = e^{s_j − s_max} for all keys but the largest, R = Σw and p = 1/(1 + R). The squared norm is then
    p⁴R² + p²Σw² − 2p³Σw³ + 2p⁴Σw² + p⁴(Σw²)², in which nothing cancels.
    """
    from scipy.special import ndtr, ndtri
    from scipy.stats import chi2

    rng = np.random.default_rng([0, 610, keys, head_dim])
    levels = (rng.permutation(_LAW_ROWS) + rng.random(_LAW_ROWS)) / _LAW_ROWS
    betas, at_once = scale * np.sqrt(chi2.ppf(levels, head_dim)), max(1, 2**20 // keys)
    squared = list[Array]()
    for beta in np.split(betas, range(at_once, _LAW_ROWS, at_once)):
        x = rng.standard_normal((beta.size, keys))
        x[np.arange(beta.size), x.argmax(axis=1)] = -np.inf
        second = x.max(axis=1, keepdims=True)
        w = np.exp(beta[:, None] * (x - second))
        first, square, cube = (one.sum(axis=1, keepdims=True) for one in (w, w * w, w**3))
        above = (np.arange(_COPIES) + rng.random((beta.size, _COPIES))) / _COPIES * ndtr(-second)
        down = np.exp(-beta[:, None] * (-ndtri(above) - second))  # e^{s_second − s_max}
        first, square, cube = first * down, square * down**2, cube * down**3
        p = 1 / (1 + first)
        squared.append(p**4 * (first**2 + 2 * square + square**2) + p**2 * square - 2 * p**3 * cube)
    return np.asarray(np.sqrt(np.concatenate(squared)))


EXPERIMENT = Experiment(
    about=__doc__,
    title="The vanishing gradient",
    measure=measure,
    sentences=(
        "At n = 1024 and d_k = 64 the root mean square of ‖J‖ is {ratio:.1f} times as large without the scale as "
        "with it.",
        "In a larger sample {below:.1%} of the unscaled rows have a ‖J‖ below 1e-3 at d_k = 64 "
        "(predicted: 2.6%), and {many:.0%} at 4096 (67%).",
        "With the scale the mean square falls with the length, from {short:.1e} at n = 256 to {long:.1e} at "
        "16,384.",
    ),
    numbers={
        "ratio": measured(RATIO, keys=_KEYS),
        "below": measured(AGAINST_DIM, head_dim=64),
        "many": measured(AGAINST_DIM, head_dim=4096),
        "short": measured(SQUARE, against="n", keys=256),
        "long": measured(SQUARE, against="n", keys=16384),
    },
    lesson="Without 1/√d_k, ‖J‖ is below 1e-3 in a share of the rows. Predicted at n = 1024: 2.6 % of them at d_k = "
    "64, 45 % at 1,024 and 67 % at 4,096. The root mean square over rows falls only slowly: from .29 at d_k = 64 to "
    ".13 at 4,096 (in theory: attnlab.theory.attention_under_random_inputs). With the scale it falls with the "
    "length, as √(e/n) for large n and d_k.",
    charts=(
        Chart(
            title="Unscaled, a tail of rows gets almost no gradient",
            x="norm",
            x_label=f"x, at n = {_KEYS} and d_k = {_HEAD_DIM}",
            y="share of rows with ‖J‖ < x",
            lines={name: of(BELOW, scaling=name, keys=_KEYS) for name in ("unscaled", "scaled")},
            marks={"threshold 1e-3": SMALL},
            limits=(-0.03, 1.05),
        ),
        Chart(
            title="The tail becomes the bulk as d_k grows",
            x="head_dim",
            x_label=f"head dimension d_k, unscaled, at n = {_KEYS}",
            y="share of rows with ‖J‖ < 1e-3",
            lines={"unscaled": of(AGAINST_DIM)},
            limits=(0.0, 1.0),
        ),
    ),
)
