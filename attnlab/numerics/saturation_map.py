"""The softmax as a random energy model: its phase diagram over (n, d_k), and across the freezing temperature.

Queries have exactly the length √d_k here, so that a row's logits are independent N(0, β²) numbers, β = scale·√d_k,
and one exact curve of the random energy model (Derrida 1981) is the prediction. One backend measures: that all
agree is found out where they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from attnlab.numerics.clusters import mean_over_clusters
from attnlab.numerics.contestants import Contestant, generator
from attnlab.numerics.finding import Row
from attnlab.numerics.observables import Array, Observables, observe
from attnlab.theory import critical_beta, extreme_level, random_energy

MAP_KEYS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MAP_HEAD_DIMS = (2, 4, 8, 16, 32, 64, 128)
#: temperatures in units of the freezing one, 1/β_c
TEMPERATURES = (0.125, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0)
_KEYS, _HEAD_DIM = 1024, 16
#: heads, and queries of each; heads are the independent clusters
_HEADS, _QUERIES = 32, 16
#: the frozen law holds for n → ∞; at these n it is off by less than this from 1.5 β_c on
FROZEN_SLACK, _DEEP = 0.03, 1.5
_SLACK = 2e-5

QUANTITIES: Mapping[str, Callable[[Observables], Array]] = {
    "entropy": lambda seen: seen.entropy,
    "largest_weight": lambda seen: seen.largest_weight,
    "participation": lambda seen: seen.participation,
}


def map_rows(thermometer: Contestant, seed: int) -> Iterator[Row]:
    """Largest weight of unscaled attention (β = √d_k) over the plane of n and d_k."""
    for keys in MAP_KEYS:
        for head_dim in MAP_HEAD_DIMS:
            seen = _rows_of(thermometer, keys, head_dim, 1.0, generator(seed, 400, keys, head_dim))
            mean, error = mean_over_clusters(seen.largest_weight[0])
            yield Row.compare(
                "largest_weight on the map",
                {"backend": thermometer.name, "keys": keys, "head_dim": head_dim},
                predicted=random_energy(keys, math.sqrt(head_dim)).largest_weight,
                measured=mean,
                standard_error=error,
                slack=_SLACK,
            )


def temperature_rows(thermometer: Contestant, seed: int) -> Iterator[Row]:
    """Entropy, largest weight, participation and the share of frozen rows across the freezing temperature."""
    critical = critical_beta(_KEYS)
    for number, temperature in enumerate(TEMPERATURES):
        beta = critical / temperature
        rng = generator(seed, 500, number)
        seen = _rows_of(thermometer, _KEYS, _HEAD_DIM, beta / math.sqrt(_HEAD_DIM), rng)
        where: dict[str, str | float] = {
            "backend": thermometer.name,
            "keys": _KEYS,
            "temperature / freezing": temperature,
        }
        exact = random_energy(_KEYS, beta)
        for quantity, of in QUANTITIES.items():
            mean, error = mean_over_clusters(of(seen)[0])
            yield Row.compare(
                f"{quantity} against temperature",
                where,
                predicted=getattr(exact, quantity),
                measured=mean,
                standard_error=error,
                slack=_SLACK,
            )
        if beta >= _DEEP * critical:
            frozen, error = mean_over_clusters((seen.largest_weight[0] > 0.5).astype(np.float64))
            expected = frozen_fraction(_KEYS, beta)
            # where nearly all rows are frozen, those that were seen not to be are too few to tell the error
            error = max(error, math.sqrt(expected * (1 - expected) / seen.largest_weight.size))
            yield Row.compare(
                "frozen fraction",
                where,
                predicted=expected,
                measured=frozen,
                standard_error=error,
                slack=FROZEN_SLACK,
            )


def frozen_fraction(keys: int, beta: float) -> float:
    """P(p_max > ½) in the frozen phase, for n → ∞: (sin πm/π) ∫_½¹ x^{−1−m} (1 − x)^{m−1} dx.

    At most one weight exceeds ½, so that the probability is the mean number of weights that do, an integral
    over the intensity of the Poisson–Dirichlet law (Pitman and Yor 1997) with m = b_n/β. Raises ValueError where
    m is not below 1: there the row is not frozen.
    """
    from scipy.integrate import quad

    m = extreme_level(keys) / beta
    if not 0 < m < 1:
        raise ValueError(f"not frozen: b_n/β must lie between 0 and 1, got {m:g}")
    # 1 − x = y^{1/m} takes the singularity at x = 1 away
    integral, _ = quad(lambda y: (1 - y ** (1 / m)) ** (-1 - m) / m, 0.0, 0.5**m)
    return math.sin(math.pi * m) / math.pi * float(integral)


def _rows_of(
    thermometer: Contestant, keys: int, head_dim: int, scale: float, rng: np.random.Generator
) -> Observables:
    """Observables of rows whose queries have the length √d_k exactly."""
    q: NDArray[np.float64] = rng.standard_normal((1, _HEADS, _QUERIES, head_dim))
    q *= math.sqrt(head_dim) / np.linalg.norm(q, axis=-1, keepdims=True)
    k = rng.standard_normal((1, _HEADS, keys, head_dim), dtype=np.float32)
    return observe(thermometer.attend, q.astype(np.float32), k, scale=scale)
