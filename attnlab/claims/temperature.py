"""The softmax as a distribution of statistical mechanics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from attnlab.claims.check import Check, claimed, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import distance, softmax, weights_of
from attnlab.numerics.black_box import Attend
from attnlab.numerics.observables import observe
from attnlab.theory import entropy_slope_in_temperature, softmax_relative_error_bound

THEME = Theme("Temperature")
_SCALE = 0.25


def _drawn(lab: Laboratory) -> tuple[Array, Array, Array]:
    """q, k of shape (1, 4, length, 16), and their scores at temperature 1."""
    q, k = lab.normal(1, 4, 8, 16, stream=1), lab.normal(1, 4, 32, 16, stream=2)
    return q, k, _SCALE * q @ k.swapaxes(-1, -2)


@THEME.claim(
    "boltzmann",
    "S4:187-195; S4:263; S4:275-277",
    kind="identity",
    says="The softmax is a Boltzmann distribution: energy −s, temperature 1.",
    truth="It is one exactly and not in approximation, and the energy is the negative of the score,"
    " not its inverse. Hence H = ln Z − ⟨s⟩ and d ln Z/dβ = ⟨s⟩.",
    reference="Jaynes 1957",
)
def boltzmann(lab: Laboratory) -> Sequence[Check]:
    q, k, s = _drawn(lab)
    energy, temperature = -s, lab.part("temperature", 1.0)
    boltzmann_factor = np.exp(-energy / temperature)
    predicted = boltzmann_factor / boltzmann_factor.sum(axis=-1, keepdims=True)
    # the scores' own roundings, relative in a weight, on top of the softmax's
    spread = float(np.ptp(s, axis=-1).max())
    bound = softmax_relative_error_bound(32, spread, "float64") + 18 * 2.0**-53 * 2 * float(
        np.abs(s).max() + 16
    )
    worst = lab.worst(lambda attend: np.abs(weights_of(attend, q, k, scale=_SCALE) / predicted - 1).max())
    entropy = lab.worst(partial(_entropy_gap, q=q, k=k))
    inverse = softmax(-1 / s)
    wrong = lab.worst(lambda attend: -distance(weights_of(attend, q, k, scale=_SCALE), inverse))
    return [
        claimed(
            "largest relative difference from e^{−E/T}/Z", worst.figure, "≤", 4 * bound, where=worst.where
        ),
        claimed("|H − (ln Z − ⟨s⟩)|", entropy.figure, "≤", 0, slack=1e-11, unit="nat", where=entropy.where),
        right("distance from the same with E = 1/s", -wrong.figure, ">", 0.1, where=wrong.where),
    ]


def _entropy_gap(attend: Attend, *, q: Array, k: Array) -> float:
    p = weights_of(attend, q, k, scale=_SCALE)
    seen = observe(attend, q, k, scale=_SCALE)
    direct = -(p * np.log(p)).sum(axis=-1)
    return float(np.abs(direct - (seen.log_partition - seen.mean_energy)).max())


_TAUS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0)


@THEME.claim(
    "temperature-sharpens",
    "S4:203-209; S4:271",
    kind="identity",
    says="A small temperature makes the weights sharp, a large one makes them flat.",
    truth="The entropy never falls with the temperature, dH/dτ = Var_p(s)/τ³; towards 0 all weight "
    "goes to the largest score, and towards infinity H = ln n.",
    reference="Jaynes 1957; Hinton et al. 2015 (1503.02531)",
)
def temperature_sharpens(lab: Laboratory) -> Sequence[Check]:
    q, k, s = _drawn(lab)
    factor: Callable[[float], float] = lab.part("factor", lambda tau: 1 / tau)
    falls = lab.worst(partial(_falls, q=q, k=k, factor=factor))
    cold = lab.worst(
        lambda attend: 1 - observe(attend, q, k, scale=_SCALE * factor(1e-4)).largest_weight.min()
    )
    hot = lab.worst(
        lambda attend: np.abs(observe(attend, q, k, scale=_SCALE * factor(1e4)).entropy - math.log(32)).max()
    )
    step = 1e-4
    predicted = entropy_slope_in_temperature(s, 1.0)
    slope = lab.worst(
        lambda attend: distance(
            (
                observe(attend, q, k, scale=_SCALE * factor(1 + step)).entropy
                - observe(attend, q, k, scale=_SCALE * factor(1 - step)).entropy
            )
            / (2 * step),
            predicted,
        )
    )
    return [
        claimed("rows whose entropy falls as τ rises", falls.figure, "=", 0, where=falls.where),
        claimed("1 − p_max at τ = 1e-4", cold.figure, "≤", 0, slack=1e-3, where=cold.where),
        claimed("ln n − H at τ = 1e4", hot.figure, "≤", 0, slack=1e-6, unit="nat", where=hot.where),
        claimed("dH/dτ against Var_p(s)/τ³, relative", slope.figure, "≤", 0, slack=1e-5, where=slope.where),
    ]


def _falls(attend: Attend, *, q: Array, k: Array, factor: Callable[[float], float]) -> float:
    rows = [observe(attend, q, k, scale=_SCALE * factor(tau)).entropy for tau in _TAUS]
    return float((np.diff(np.stack(rows), axis=0) < -1e-12).sum())
