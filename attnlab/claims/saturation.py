"""How peaked the weights are, with and without the factor 1/√d_k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from attnlab.claims.check import Check, claimed, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import softmax
from attnlab.numerics.black_box import Attend
from attnlab.numerics.clusters import mean_over_clusters
from attnlab.numerics.observables import observe
from attnlab.numerics.slopes import log_log_slope
from attnlab.theory import attention_under_random_inputs

THEME = Theme("Saturation")
VASWANI = "Vaswani et al. 2017, §3.2.1"
_D = 64


@THEME.claim(
    "scale-for-later-steps",
    "S0:27",
    kind="statistics",
    says="The factor 1/√d_k avoids large values in the steps that follow, above all in deep models.",
    truth="What follows is bounded without the factor: no output lies outside the range of the values. The "
    "factor prevents saturation, since std(q·k) ∝ √d_k while std(q·k/√d_k) does not depend on d_k; and "
    "depth does not enter: it is the same in every layer.",
    reference=VASWANI,
)
def scale_for_later_steps(lab: Laboratory) -> Sequence[Check]:
    head_dims, layers = (16, 64, 256), 6
    stacks = {d: _stack(lab, d, layers) for d in head_dims}
    largest = max(one for _, one in stacks.values())
    # squares of the scores, (layers, independent stacks)
    growth = (stacks[64][0][-1] - stacks[64][0][0]) / 64
    checks = [
        claimed("largest |o| over largest |v|, no scale", largest, ">", 1, slack=1e-12, where="6 layers"),
        *(
            role(
                "Var(q·k)/d_k in layer 6 less that in layer 1",
                growth.mean(),
                relation,
                0,
                error=_error(growth),
                where="no scale, d_k = 64",
            )
            for role, relation in ((claimed, ">"), (right, "="))
        ),
    ]
    for layer in (0, layers - 1):
        drawn = [stacks[d][0][layer] for d in head_dims]
        slope, error = log_log_slope(head_dims, [float(x.mean()) for x in drawn], [_error(x) for x in drawn])
        where = f"layer {layer + 1}, d_k = 16 to 256"
        checks += [
            right("slope of ln std(q·k) on ln d_k", slope / 2, "=", 0.5, error=error / 2, where=where),
            right(
                "slope of ln std(q·k/√d_k) on ln d_k", slope / 2 - 0.5, "=", 0, error=error / 2, where=where
            ),
        ]
    return checks


def _error(x: Array) -> float:
    return float(x.std(ddof=1)) / math.sqrt(len(x))


def _stack(lab: Laboratory, head_dim: int, layers: int) -> tuple[list[Array], float]:
    """Mean squared score of every layer, (stacks,) each, and the largest |o|/|v|, in unscaled pre-norm stacks."""
    norm: Callable[[Array], Array] = lab.part(
        "norm", lambda x: x / np.sqrt((x * x).mean(axis=-1, keepdims=True))
    )
    weights: Callable[[Array], Array] = lab.part("weights", softmax)
    stacks, tokens, width = 24, 24, 32
    rng = lab.rng(head_dim)
    x = rng.standard_normal((stacks, tokens, width))
    squares, growth = [], 0.0
    for _ in range(layers):
        inside = norm(x)
        q, k = (inside @ rng.standard_normal((stacks, width, head_dim)) / math.sqrt(width) for _ in "qk")
        v = inside @ rng.standard_normal((stacks, width, width)) / math.sqrt(width)
        scores = q @ k.swapaxes(-1, -2)
        o = weights(scores) @ v
        squares.append((scores**2).mean(axis=(1, 2)))
        growth = max(growth, float(np.abs(o).max() / np.abs(v).max()))
        x = x + o
    return squares, growth


@THEME.claim(
    "no-element-dominates",
    "S4:181",
    kind="statistics",
    says="After a softmax no one element can dominate.",
    truth="One can. With unscaled scores, which the text has at that point, the largest of 1024 weights "
    "averages .706 at d_k = 64 by theory, and one row in ten has a weight over .99.",
    reference="Derrida 1981; Bovier, Kurkova, Löwe 2002",
)
def no_element_dominates(lab: Laboratory) -> Sequence[Check]:
    scale = lab.part("scale", 1.0)
    keys, heads, queries = 1024, 32, 16
    q, k = (lab.normal(1, heads, n, _D, stream=n).astype(np.float32) for n in (queries, keys))
    seen = {
        name: observe(attend, q, k, scale=scale).largest_weight for name, attend in lab.backends(fast=True)
    }
    largest = max(seen, key=lambda name: float(seen[name].mean()))
    rows = np.asarray(seen[largest]).reshape(heads, queries)
    mean, error = mean_over_clusters(rows)
    over, over_error = mean_over_clusters((rows > 0.99).astype(float))
    where = f"n = 1024, d_k = 64, no scale; {len(seen)} backends, {largest}"
    exact = attention_under_random_inputs(keys, _D, scale)
    return [
        claimed("mean largest weight", mean, "<", 0.5, error=error, where=where),
        claimed(
            "share of rows with a weight over .99",
            over,
            "=",
            0,
            error=0,
            slack=1e-3,
            where=f"± {over_error:.3f}",
        ),
        right(
            "mean largest weight",
            mean,
            "=",
            exact.largest_weight,
            error=error,
            slack=2e-5,
            where="exact integral",
        ),
    ]


@THEME.claim(
    "neither-peaked-nor-flat",
    "S4:307",
    kind="statistics",
    says="Scaled weights are neither too peaked nor too flat.",
    truth="At any fixed scale the weights flatten with the length, H/ln n → 1; and they peak where "
    "σ_qσ_k is large, whatever d_k is.",
    reference="Veličković et al. 2024 (2410.01104); Nakanishi 2025 (2501.19399)",
)
def neither_peaked_nor_flat(lab: Laboratory) -> Sequence[Check]:
    lengths, sigma = lab.part("lengths", (128, 1024, 16384)), lab.part("sigma", 16.0)
    drawn = [_relative_entropy(lab, keys, 1.0) for keys in lengths]
    found = [one[:2] for one in drawn]
    (short, short_error), (long, long_error) = found[0], found[-1]
    peaked, _, weight, weight_error = _relative_entropy(lab, 1024, sigma)
    names = f"{len(lab.backends(fast=True))} backends"
    return [
        claimed(
            f"H/ln n at n = {lengths[-1]} over n = {lengths[0]}",
            long / short,
            "=",
            1,
            error=math.hypot(short_error, long_error) / short,
            where=f"σ_qσ_k = 1, d_k = 64; {names}",
        ),
        claimed(
            "mean largest weight", weight, "<", 0.5, error=weight_error, where=f"σ_qσ_k = {sigma:g}, n = 1024"
        ),
        *(
            right(
                "H/ln n",
                mean,
                "=",
                attention_under_random_inputs(keys, _D, _D**-0.5).entropy / math.log(keys),
                error=error,
                slack=1e-5,
                where=f"n = {keys}; exact integral",
            )
            for keys, (mean, error) in zip(lengths, found, strict=True)
        ),
        right(
            "H/ln n",
            peaked,
            "<",
            short,
            where=f"σ_qσ_k = {sigma:g}, n = 1024, against σ_qσ_k = 1, n = {lengths[0]}",
        ),
    ]


def _relative_entropy(lab: Laboratory, keys: int, sigma: float) -> tuple[float, float, float, float]:
    """H/ln n and the largest weight, each with its standard error; the backend that is furthest off the mean."""
    heads, queries = 16, 8
    q, k = (lab.normal(1, heads, n, _D, stream=n).astype(np.float32) for n in (queries, keys))
    rows = [_entropies(attend, q, k, sigma) for _, attend in lab.backends(fast=True)]
    middle = float(np.median([one[0].mean() for one in rows]))
    entropy, weight = max(rows, key=lambda one: abs(float(one[0].mean()) - middle))
    cluster = partial(np.reshape, shape=(heads, queries))
    mean, error = mean_over_clusters(cluster(entropy / math.log(keys)))
    return mean, error, *mean_over_clusters(cluster(weight))


def _entropies(attend: Attend, q: Array, k: Array, sigma: float) -> tuple[Array, Array]:
    seen = observe(attend, q, k, scale=sigma * _D**-0.5)
    return seen.entropy, seen.largest_weight
