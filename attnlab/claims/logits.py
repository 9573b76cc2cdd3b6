"""The variance of the scores at random inputs, and what the factor 1/√d_k does to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.numerics.slopes import log_log_slope
from attnlab.theory import dot_product_moments

THEME = Theme("The variance of the scores")
VASWANI = "Vaswani et al. 2017, §3.2.1"
#: queries and keys of a block, and blocks of a point
_SIDE, _BLOCKS = 256, 8
_HEAD_DIMS = (4, 16, 64, 256, 1024)


def _variance(
    lab: Laboratory, head_dim: int, *, sigma: tuple[float, float] = (1.0, 1.0), scale: float = 1.0
) -> tuple[float, float, float]:
    """Measured variance of scale·q·k about 0 over normal q and k, its predicted value and its standard error."""
    draw: Callable[[np.random.Generator, tuple[int, int]], Array] = lab.part("draw", _normal)
    total = 0.0
    for block in range(_BLOCKS):
        rng = lab.rng(head_dim, block)
        q, k = (std * draw(rng, (_SIDE, head_dim)) for std in sigma)
        total += float(np.mean((scale * (q @ k.T)) ** 2))
    exact = dot_product_moments(head_dim, query_std=sigma[0], key_std=sigma[1], scale=scale)
    error = exact.variance_standard_error(_SIDE, _SIDE) / math.sqrt(_BLOCKS)
    return total / _BLOCKS, exact.variance, error


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape)


def _variances(lab: Laboratory, scale: Callable[[int], float]) -> tuple[list[float], list[float]]:
    found = [_variance(lab, d, scale=scale(d)) for d in _HEAD_DIMS]
    return [one[0] for one in found], [one[2] for one in found]


@THEME.claim(
    "dot-products-grow",
    "S3:99",
    kind="statistics",
    says="Dot products grow as the dimension of queries and keys does.",
    truth="Their standard deviation grows as √d_k, if the components are independent with zero mean.",
    reference=VASWANI,
)
def dot_products_grow(lab: Laboratory) -> Sequence[Check]:
    power = lab.part("power", 0.0)
    variances, errors = _variances(lab, lambda d: d**power)
    slope, error = log_log_slope(_HEAD_DIMS, variances, errors)
    where = f"d_k = 4 to 1024, {_BLOCKS * _SIDE**2:,} scores each"
    return [claimed("slope of ln std on ln d_k", slope / 2, "=", 0.5, error=error / 2, where=where)]


@THEME.claim(
    "variance-proportional-to-d",
    "S4:243; S4:245",
    kind="statistics",
    says="Var(q·k) is proportional to the dimension, and a factor enters it squared.",
    truth="Both are so: the slope is 1, and dividing the scores by √d_k divides the variance by d_k.",
    reference=VASWANI,
)
def variance_proportional_to_d(lab: Laboratory) -> Sequence[Check]:
    power = lab.part("power", -0.5)
    slopes = []
    for name, scale in (("q·k", lambda d: 1.0), ("q·k/√d_k", lambda d: d**power)):
        variances, errors = _variances(lab, scale)
        slopes.append((name, *log_log_slope(_HEAD_DIMS, variances, errors)))
    return [
        claimed(
            f"slope of ln Var({name}) on ln d_k",
            slope,
            "=",
            predicted,
            error=error,
            where="d_k = 4 to 1024",
        )
        for (name, slope, error), predicted in zip(slopes, (1.0, 0.0), strict=True)
    ]


@THEME.claim(
    "variances-add",
    "S4:237",
    kind="statistics",
    says="The terms of the dot product are uncorrelated, so that their variances add.",
    truth="They add: Var(Σ_c q_c k_c) = Σ_c Var(q_c k_c) for independent components.",
    reference=VASWANI,
)
def variances_add(lab: Laboratory) -> Sequence[Check]:
    draw: Callable[[np.random.Generator, tuple[int, int]], Array] = lab.part("draw", _normal)
    checks, blocks = [], 40
    for head_dim in (4, 64):
        sums, terms = np.empty(blocks), np.empty(blocks)
        for block in range(blocks):
            rng = lab.rng(head_dim, block)
            q, k = (draw(rng, (128, head_dim)) for _ in "qk")
            sums[block] = ((q @ k.T) ** 2).mean()
            terms[block] = (q**2).mean(axis=0) @ (k**2).mean(axis=0)
        # of the same draws, so that their own scatter cancels and the covariances are left
        error = float((sums - terms).std(ddof=1)) / math.sqrt(blocks)
        where = f"d_k = {head_dim}; sum of the variances of its terms"
        checks.append(claimed("Var(q·k)", sums.mean(), "=", terms.mean(), error=error, where=where))
    return checks


@THEME.claim(
    "variance-sigma-squared",
    "S4:240",
    kind="statistics",
    says="If the components have variance σ², the dot product has variance σ²d_k.",
    truth="A product of two such components has variance σ⁴, so that Var(q·k) = σ_q²σ_k²d_k = σ⁴d_k.",
    reference=VASWANI,
)
def variance_sigma_squared(lab: Laboratory) -> Sequence[Check]:
    sigma = lab.part("sigma", 2.0)
    measured, predicted, error = _variance(lab, 64, sigma=(sigma, sigma))
    where = f"σ = {sigma:g}, d_k = 64"
    return [
        claimed("Var(q·k) against σ²d_k", measured, "=", sigma**2 * 64, error=error, where=where),
        right("Var(q·k) against σ⁴d_k", measured, "=", predicted, error=error, where=where),
    ]


@THEME.claim(
    "magnitude-manageable",
    "S4:253",
    kind="statistics",
    says="Dividing by √d_k keeps the scores at a manageable size.",
    truth="It takes d_k out of the variance and leaves σ_q²σ_k², which is 1 only where σ_qσ_k = 1.",
    condition="σ_qσ_k = 1",
    reference="Zhai et al. 2023 (2303.06296)",
)
def magnitude_manageable(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for role, sigma in ((claimed, 1.0), (beyond, lab.part("sigma", 4.0))):
        for head_dim in (16, 256):
            measured, predicted, error = _variance(lab, head_dim, sigma=(sigma, sigma), scale=head_dim**-0.5)
            where = f"σ_q = σ_k = {sigma:g}, d_k = {head_dim}"
            checks += [
                role("Var(q·k/√d_k)", measured, "=", 1, error=error, where=where),
                right("Var(q·k/√d_k) against σ_q²σ_k²", measured, "=", predicted, error=error, where=where),
            ]
    return checks


@THEME.claim(
    "components-iid",
    "S4:227",
    kind="statistics",
    says="The components of queries and keys are independent and identically distributed.",
    truth="So they are over random weights, given the input. Across tokens with the weights fixed, "
    "components c and c′ have the correlation of rows c and c′ of the weights; after training"
    " nothing of it need be left.",
    condition="over random weights, for a given input",
    reference="Zhai et al. 2023 (2303.06296)",
)
def components_iid(lab: Laboratory) -> Sequence[Check]:
    model_dim, head_dim, many = 16, 8, 20_000
    x = lab.normal(model_dim, stream=1)
    over_weights = lab.normal(many, head_dim, model_dim, stream=2) @ x
    rows: Array = lab.part("rows", lambda drawn: drawn)(lab.normal(head_dim, model_dim, stream=3))
    over_tokens = lab.normal(many, model_dim, stream=4) @ rows.T
    length = np.linalg.norm(rows, axis=1)
    fixed = rows @ rows.T / np.outer(length, length)
    apart = ~np.eye(head_dim, dtype=bool)
    # of so many independent correlations of pure noise the mean square is 1/N, give or take
    count = head_dim * (head_dim - 1) / 2
    noise, error = 1 / many, math.sqrt(2 / count) / many
    squares = [
        float((np.asarray(np.corrcoef(drawn.T))[apart] ** 2).mean()) for drawn in (over_weights, over_tokens)
    ]
    spread = over_weights.var(axis=0) / float(x @ x)
    worst = float(spread[np.abs(spread - 1).argmax()])
    measured: Array = np.asarray(np.corrcoef(over_tokens.T))
    furthest = float((np.abs(measured - fixed) * math.sqrt(many))[apart].max())
    return [
        claimed("mean squared correlation over weights", squares[0], "=", noise, error=error),
        claimed("variance over |x|²σ_w², the furthest of 8", worst, "=", 1, error=math.sqrt(2 / many)),
        beyond("mean squared correlation across tokens, weights fixed", squares[1], "=", noise, error=error),
        right("furthest from the weights' own correlation", furthest, "≤", 5, unit="standard errors"),
    ]


@THEME.claim(
    "uniform-initialisation",
    "S1:43-45",
    kind="statistics",
    says="Weights drawn evenly from 0 to 1 are a random initialisation that prefers no token.",
    truth="Their mean is ½, so that E s_ij = √d_k(½Σx_i)(½Σx_j): in the tutorial's example the "
    "token with the largest sum gets the largest weight in every draw. Drawn about 0 they "
    "prefer none.",
    condition="drawn about 0",
    reference="Glorot and Bengio 2010",
)
def uniform_initialisation(lab: Laboratory) -> Sequence[Check]:
    low = lab.part("low", 0.0)
    x = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
    head_dim, draws = 2, 20_000

    def scores(shift: float, stream: int) -> Array:
        w_q, w_k = (lab.rng(stream, i).random((draws, 4, head_dim)) + shift for i in (1, 2))
        return np.asarray((x @ w_q) @ (x @ w_k).swapaxes(-1, -2) / math.sqrt(head_dim))

    centred, written = scores(-0.5, 1), scores(low, 2)
    error_0, error_1 = (s.mean(axis=(1, 2)).std() / math.sqrt(draws) for s in (centred, written))
    half = (0.5 + low) * x.sum(axis=1)
    predicted = math.sqrt(head_dim) * float(np.outer(half, half).mean())
    first = float((written.argmax(axis=-1) == 2).all(axis=-1).mean())
    return [
        claimed("mean score, drawn from −½ to ½", centred.mean(), "=", 0, error=error_0),
        beyond("mean score, drawn as written", written.mean(), "=", 0, error=error_1),
        beyond("share of draws in which token 3 wins every row", first, "<", 1, where=f"{draws:,} draws"),
        right("mean score against √d_k(½Σx_i)(½Σx_j)", written.mean(), "=", predicted, error=error_1),
    ]
