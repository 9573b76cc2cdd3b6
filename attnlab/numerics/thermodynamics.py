"""Is the softmax a Boltzmann distribution, in every backend, to the last digits? And what is its heat capacity?

Energies −s, inverse temperature β: ln Z generates the mean and the variance of the logits, entropy falls as β
rises, and the answer to a changed logit is a covariance (fluctuation–dissipation). None of it is an approximation,
so that a backend which misses an identity is wrong, whatever its inputs were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnlab.numerics.estimates import mean_row
from attnlab.numerics.finding import Row, Where
from attnlab.numerics.identities import violations
from attnlab.numerics.observables import observe
from attnlab.numerics.responses import energy_variance
from attnlab.numerics.survey import OpenBackend, Survey, agreement, generator
from attnlab.theory import critical_beta, random_energy

#: heads, queries, keys, head dimension of the identities; β is the logits' standard deviation
_HEADS, _QUERIES, _KEYS, _HEAD_DIM = 4, 8, 48, 16
BETAS = (0.5, 2.0)
CURVE_KEYS = 256
#: inverse temperatures of the curves, in units of the freezing one
CURVE = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.25, 1.5, 1.8, 2.2, 2.8)


def measure(survey: Survey) -> None:
    """The largest violation of each identity of a Boltzmann distribution, through each backend in float64.

    Prediction 0, standard error 0; a row passes within what rounding (1e-11) or a difference quotient (1e-8) can do.
    And ln Z, energy, entropy and heat capacity against β, on the exact curves of the random energy model.
    """
    survey.each(_identities)
    survey.one(_curves)


def _identities(one: OpenBackend, seed: int) -> Iterator[Row]:
    for number, beta in enumerate(BETAS):
        rng = generator(seed, 900, number)
        q, k, v = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (_QUERIES, _KEYS, _KEYS))
        for found in violations(one.attend, q, k, v, beta / np.sqrt(_HEAD_DIM)):
            yield Row.compare(
                found.identity,
                {"backend": one.name, "beta": beta},
                predicted=0.0,
                measured=found.largest,
                standard_error=0.0,
                slack=found.tolerance,
            )


def _curves(one: OpenBackend, seed: int) -> Iterator[Row]:
    """ln Z, ⟨s⟩, H and β²Var_p(s) of rows of iid N(0, β²) logits, against the random energy model."""
    for number, ratio in enumerate(CURVE):
        beta = ratio * critical_beta(CURVE_KEYS)
        rng = generator(seed, 950, number)
        q, k = (rng.standard_normal((1, 48, n, _HEAD_DIM)) for n in (_QUERIES, CURVE_KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        seen = observe(one.attend, q, k, scale=beta)
        exact = random_energy(CURVE_KEYS, beta)
        for quantity, values, expected in (
            ("log_partition", seen.log_partition, exact.log_partition),
            ("mean_energy", seen.mean_energy, exact.log_partition - exact.entropy),
            ("entropy", seen.entropy, exact.entropy),
            (
                "heat_capacity",
                energy_variance(one.attend, q, k, scale=beta),
                exact_heat_capacity(CURVE_KEYS, beta),
            ),
        ):
            where: Where = {"backend": one.name, "beta / critical": ratio, "keys": CURVE_KEYS}
            yield mean_row(quantity, where, values[0], predicted=expected)


def exact_heat_capacity(keys: int, beta: float) -> float:
    """E Var_p(βx), x the unit logits: β² d/dβ[β(1 − E Σp²)], as ⟨x⟩ = β(1 − E Σp²) by parts.

    The derivative by a central difference of the exact quadrature, relative error about 1e-5.
    """
    step = 0.02 * beta

    def energy(b: float) -> float:
        return b * (1 - random_energy(keys, b).participation)

    def central(h: float) -> float:
        return (energy(beta + h) - energy(beta - h)) / (2 * h)

    return beta**2 * (4 * central(step / 2) - central(step)) / 3


def conclusion(rows: Sequence[Row]) -> str:
    """The largest violation of any identity."""
    checked = [row for row in rows if "beta" in row.where]
    if not checked:
        return "No backend could be measured."
    through = len({str(row.where["backend"]) for row in checked})
    identities = len({row.quantity for row in checked})
    worst = max(checked, key=lambda row: row.measured)
    return (
        f"Of {identities} identities of a Boltzmann distribution, tried through {through} backends, the largest "
        f"violation is {worst.measured:.1e} ({worst.quantity}, {worst.where['backend']}). {agreement(rows, 'theory')}."
    )
