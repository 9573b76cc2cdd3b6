"""Where does the softmax freeze, in the backends themselves? Against d_k, over (n, d_k), and across a temperature.

Given the query, the logits of standard normal inputs are independent normal numbers, and the row is Derrida's
random energy model (1981): it freezes, so that a few keys hold all the weight however many there are, when the logits'
standard deviation passes √(2 ln n). Unscaled that is d_k > 2 ln n. For the map and the temperature, queries have
exactly the length √d_k, so that one exact curve is the prediction, and one backend measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnlab.numerics.estimates import mean_over_clusters, mean_row
from attnlab.numerics.finding import Row, Where
from attnlab.numerics.observables import Array, Observables, observe
from attnlab.numerics.survey import OpenBackend, Survey, agreement, generator
from attnlab.theory import (
    attention_under_random_inputs,
    critical_beta,
    extreme_level,
    freezing_head_dim,
    random_energy,
)

#: keys a row, head dimensions, heads and queries a head; a slow backend gets the second line. Below d_k = 4 a few
#: long queries carry the mean participation, and no error of it can be told from the rows that were seen
_KEYS, _HEAD_DIMS, _HEADS, _QUERIES = 1024, (4, 8, 16, 32, 64, 128, 256), 32, 32
_SLOW_KEYS, _SLOW_HEAD_DIMS, _SLOW_HEADS, _SLOW_QUERIES = 64, (4, 64), 32, 4
#: single precision resolves weights to about 1e-6 and entropies to 1e-5 at these sizes
DTYPE, _SLACK = "float32", 2e-5
MAP_KEYS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MAP_HEAD_DIMS = (2, 4, 8, 16, 32, 64, 128)
#: temperatures in units of the freezing one, 1/β_c
TEMPERATURES = (0.125, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0)
_MAP_HEAD_DIM = 16
#: queries a head
_MAP_QUERIES = 16
#: the frozen law holds for n → ∞; at these n it is off by less than this from 1.5 β_c on
FROZEN_SLACK, _DEEP = 0.03, 1.5


QUANTITIES: Mapping[str, Callable[[Observables], Array]] = {
    "entropy": lambda seen: seen.entropy,
    "largest_weight": lambda seen: seen.largest_weight,
    "participation": lambda seen: seen.participation,
}


def measure(survey: Survey) -> None:
    """Mean entropy (nats), largest weight and participation Σp² of a row, through each backend in float32.

    Prediction: `attention_under_random_inputs`, exact at any n. Standard error: from the spread of the means of
    independent heads, as the rows of one head share its keys.
    """
    survey.each(_through, dtype=DTYPE)
    chosen = survey.one(lambda one, seed: [*_map_rows(one, seed), *_temperature_rows(one, seed)], DTYPE)
    if chosen:
        survey.facts["phase diagram measured through"] = chosen.name


def _through(one: OpenBackend, seed: int) -> Iterator[Row]:
    keys, dims = (_SLOW_KEYS, _SLOW_HEAD_DIMS) if one.slow else (_KEYS, _HEAD_DIMS)
    heads, queries = (_SLOW_HEADS, _SLOW_QUERIES) if one.slow else (_HEADS, _QUERIES)
    for head_dim in dims:
        rng = generator(seed, head_dim)
        q, k = (rng.standard_normal((1, heads, n, head_dim), dtype=np.float32) for n in (queries, keys))
        for scaling, scale in (("unscaled", 1.0), ("scaled", head_dim**-0.5)):
            seen = observe(one.attend, q, k, scale=scale)
            where: Where = {"backend": one.name, "scaling": scaling, "keys": keys, "head_dim": head_dim}
            expected = attention_under_random_inputs(keys, head_dim, scale)
            for quantity, of in QUANTITIES.items():
                predicted = getattr(expected, quantity)
                yield mean_row(quantity, where, of(seen)[0], predicted=predicted, slack=_SLACK)


def _map_rows(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Largest weight of unscaled attention (β = √d_k) over the plane of n and d_k."""
    for keys in MAP_KEYS:
        for head_dim in MAP_HEAD_DIMS:
            seen = _rows_of(one, keys, head_dim, 1.0, generator(seed, 400, keys, head_dim))
            yield mean_row(
                "largest_weight on the map",
                {"backend": one.name, "keys": keys, "head_dim": head_dim},
                seen.largest_weight[0],
                predicted=random_energy(keys, math.sqrt(head_dim)).largest_weight,
                slack=_SLACK,
            )


def _temperature_rows(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Entropy, largest weight, participation and the share of frozen rows across the freezing temperature."""
    critical = critical_beta(_KEYS)
    for number, temperature in enumerate(TEMPERATURES):
        beta = critical / temperature
        rng = generator(seed, 500, number)
        seen = _rows_of(one, _KEYS, _MAP_HEAD_DIM, beta / math.sqrt(_MAP_HEAD_DIM), rng)
        where: Where = {"backend": one.name, "keys": _KEYS, "temperature / freezing": temperature}
        exact = random_energy(_KEYS, beta)
        for quantity, of in QUANTITIES.items():
            name, predicted = f"{quantity} against temperature", getattr(exact, quantity)
            yield mean_row(name, where, of(seen)[0], predicted=predicted, slack=_SLACK)
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
    one: OpenBackend, keys: int, head_dim: int, scale: float, rng: np.random.Generator
) -> Observables:
    """Observables of rows whose queries have the length √d_k exactly."""
    q: NDArray[np.float64] = rng.standard_normal((1, _HEADS, _MAP_QUERIES, head_dim))
    q *= math.sqrt(head_dim) / np.linalg.norm(q, axis=-1, keepdims=True)
    k = rng.standard_normal((1, _HEADS, keys, head_dim), dtype=np.float32)
    return observe(one.attend, q.astype(np.float32), k, scale=scale)


def conclusion(rows: Sequence[Row]) -> str:
    """The freezing point, and the largest weight at both ends with and without the scale."""
    weights = [row for row in rows if row.quantity == "largest_weight"]
    if not weights:
        return "No backend could be measured."
    keys = max(int(row.where["keys"]) for row in weights)
    weights = [row for row in weights if row.where["keys"] == keys]
    ends = [float(row.where["head_dim"]) for row in weights]

    def at(scaling: str, head_dim: float) -> float:
        wanted = (scaling, head_dim)
        found = [row.measured for row in weights if (row.where["scaling"], row.where["head_dim"]) == wanted]
        return float(np.mean(found))

    low, high = min(ends), max(ends)
    return (
        f"Over {keys} keys theory has the unscaled softmax freeze around d_k = 2 ln n = {freezing_head_dim(keys):.1f}. "
        f"Its largest weight averages {at('unscaled', low):.3f} at d_k = {low:g} and {at('unscaled', high):.3f} at "
        f"{high:g}, against {at('scaled', low):.3f} and {at('scaled', high):.3f} with 1/√d_k. "
        f"{agreement(rows, 'the exact curves')}."
    )
