"""Does Var(q·k) grow as d_k, and does the scale 1/√d_k keep it at 1?

A logit is the dot product of a query and a key, q·k = Σ_c q_c k_c, over d_k components. Where these are independent
with mean 0 and variances σ_q² and σ_k², its variance is d_k σ_q² σ_k², whatever their distribution: its standard
deviation grows as √d_k. At σ_q = σ_k = 1 the factor 1/√d_k leaves a variance of 1, and 1/d_k, the scale of μP, leaves
1/d_k. Logits of one matrix share queries and keys; the standard errors allow for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.lab.experiment import Array, Chart, Experiment, Row, Subject, measured, of
from attnlab.lab.observables import read_logits
from attnlab.lab.theory import dot_product_moments

Single = NDArray[np.float32]
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]
#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
_HEAD_DIMS, _FAMILY_HEAD_DIMS = (1, 4, 16, 64, 256, 1024), (1, 4, 16, 64, 256)
#: independent heads, and queries and keys in each; a slow backend gets the second
_SIZES, _SLOW_SIZES = (24, 48, 48), (8, 16, 16)
#: queries, and keys, of a block of dot products, and independent blocks for a point
_BLOCK, _BLOCKS = 256, 24
#: float32 products and sums are good to this, relatively
_ROUNDING = 2e-5
VARIANCE, SLOPE = "variance of the logits", "slope of ln variance on ln d_k"
OF_FAMILY = "Var(q·k) / d_k"


def _rademacher(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.integers(0, 2, shape, dtype=np.int8).astype(np.float32) * 2 - 1


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.standard_normal(shape, dtype=np.float32)


#: how the components of q and of k are drawn, and what `dot_product_moments` is told of them
FAMILIES: Mapping[str, tuple[Draw, Mapping[str, float]]] = {
    "normal": (_normal, {}),
    "uniform": (
        lambda *at: at[0].uniform(-(3**0.5), 3**0.5, at[1]),
        {"query_kurtosis": 1.8, "key_kurtosis": 1.8},
    ),
    "Rademacher": (_rademacher, {"query_kurtosis": 1.0, "key_kurtosis": 1.0}),
    "Laplace": (
        lambda *at: at[0].laplace(0.0, 0.5**0.5, at[1]),
        {"query_kurtosis": 6.0, "key_kurtosis": 6.0},
    ),
    "means of ½": (lambda *at: _normal(*at) + np.float32(0.5), {"query_mean": 0.5, "key_mean": 0.5}),
    "normal, σ = 2": (lambda *at: 2 * _normal(*at), {"query_std": 2.0, "key_std": 2.0}),
}


def measure(one: Subject) -> Iterator[Row]:
    """Variances at every d_k and scaling, read from the backend's weights, and their slopes; then the law of q·k."""
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    for scaling, power in SCALINGS.items():
        rows = []
        for head_dim in _HEAD_DIMS:
            # the same draw for every backend and scaling: what differs between points is what was changed
            rng, scale = one.rng(head_dim), float(head_dim) ** power
            q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
            exact = dot_product_moments(head_dim, scale=scale)
            found = float(np.mean((read_logits(one.attend, q, k, scale=scale) - exact.mean) ** 2))
            error = exact.variance_standard_error(n_q, n_k) / math.sqrt(heads)
            where = {"scaling": scaling, "head_dim": head_dim}
            rows.append(one.row(VARIANCE, where, exact.variance, found, standard_error=error))
        yield from rows
        y, y_error = (
            np.array([getattr(row, name) for row in rows]) for name in ("measured", "standard_error")
        )
        slope, error = log_log_slope(np.array(_HEAD_DIMS, float), y, y_error)
        yield one.row(SLOPE, {"scaling": scaling}, 1 + 2 * power, slope, standard_error=error)
    if one.lead:
        yield from _families(one)


def log_log_slope(x: Array, y: Array, y_error: Array) -> tuple[float, float]:
    """Slope of ln y on ln x and its standard error, each point weighted by 1/(relative error)².

    Points are independent, the errors known and small beside y (weighted least squares; Press et al., Numerical
    Recipes, section 15.2).
    """
    (slope, _), covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / y_error, cov="unscaled")
    return float(slope), math.sqrt(covariance[0, 0])


def _families(one: Subject) -> Iterator[Row]:
    """The variance of q·k for each family, over independent blocks of dot products; no backend is needed for it."""
    for number, (label, (draw, known)) in enumerate(FAMILIES.items()):
        for head_dim in _FAMILY_HEAD_DIMS:
            exact, rng = dot_product_moments(head_dim, **known), one.rng(100 + number, head_dim)
            blocks = []
            for _ in range(_BLOCKS):
                q, k = (np.asarray(draw(rng, (_BLOCK, head_dim)), np.float32) for _ in range(2))
                blocks.append(np.mean(np.square(q @ k.T - np.float32(exact.mean)), dtype=np.float64))
            error = exact.variance_standard_error(_BLOCK, _BLOCK) / math.sqrt(_BLOCKS) / head_dim
            where, expected = {"family": label, "head_dim": head_dim}, exact.variance / head_dim
            room: dict[str, Any] = {"standard_error": error, "slack": _ROUNDING * expected}
            yield Row.compare(OF_FAMILY, where, expected, float(np.mean(blocks)) / head_dim, **room)


EXPERIMENT = Experiment(
    title="The variance of the logits",
    measure=measure,
    sentence="The variance of the logits grows as d_k to the power {unscaled:.3f}; with 1/√d_k the power is "
    "{scaled:.3f}, with 1/d_k {mup:.3f} (predicted 1, 0, −1). Components of standard deviation 2 give {wide:.1f} d_k "
    "instead of d_k.",
    numbers={
        "unscaled": measured(SLOPE, scaling="unscaled"),
        "scaled": measured(SLOPE, scaling="scaled"),
        "mup": measured(SLOPE, scaling="μP"),
        "wide": measured(OF_FAMILY, family="normal, σ = 2"),
    },
    lesson="Divide by √d_k where the components have unit variance and mean 0. The factor removes d_k and "
    "nothing else: components of standard deviation σ leave a variance of σ⁴, and a mean of the queries spreads every "
    "row.",
    charts=(
        Chart(
            title="The scale 1/√d_k keeps the variance at 1",
            x="head_dim",
            y="variance of the logits",
            log_y=True,
            lines={
                "q·k": of(VARIANCE, scaling="unscaled"),
                "q·k/√d_k": of(VARIANCE, scaling="scaled"),
                "q·k/d_k": of(VARIANCE, scaling="μP"),
            },
        ),
        Chart(
            title="Var(q·k) is σ⁴ d_k, whatever the components",
            x="head_dim",
            y=OF_FAMILY,
            log_y=True,
            lines={
                name: of(OF_FAMILY, family=name)
                for name in ("normal, σ = 2", "means of ½", "Laplace", "Rademacher")
            },
        ),
    ),
)
