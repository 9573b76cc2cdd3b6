"""How noise at one place of the backward pass reaches the gradients of q, k and v.

Names as in `exact_gradients`: P, A, D, T per row i, and k̄ = Σ_j p_j k_j, t̄ = Σ_j t_j k_j. To first order

    δs_j :  δp_j = p_j(δs_j − Σp_lδs_l),   δt_j = t_jδs_j − t_j Σp_lδs_l − p_j Σt_lδs_l
    δA_j :  δt_j = p_j(δA_j − Σp_lδA_l), where D is summed from P and A
    δD   :  δt_j = −p_j δD
    δt_j :  itself
    a factor 1 + ε on the row's weights (from its ln Z) :  δp_j = p_j ε, δt_j = t_j ε
    Σ_jt_j, but for roundings 0, where s − m is differentiated with its m :  δt_m = −Σ_jδt_j

and δ(∂L/∂q_i) = scale Σ_j δr_j k_j, δ(∂L/∂k_j) = scale Σ_i δr_ij q_i, δ(∂L/∂v_j) = Σ_i δp_ij g_i, with δr_j = f'_j δt_j
and k̄ = Σ_j p_j f'_j k_j, t̄ = Σ_j t_j f'_j k_j where there is a soft cap f. Each function takes the variances of
independent noises and gives the variances that follow, covariances within the row included.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from attnlab.correctness.error_budget import SCATTER, energy
from attnlab.correctness.exact_attention import Backward, turned
from attnlab.correctness.numbers import Array

# Rows that are enough to tell it
_SAMPLED = 16


class Noise(NamedTuple):
    """Variances of one block's gradients: query (…, rows, dim), key (…, keys, dim), value (…, keys, value_dim).

    in_query, in_key, in_value : by pair what scale² k², scale² q² and g² are to be multiplied by, (…, rows, keys), so
    that noises are added before they are summed over keys or rows; 0 where there is none. rest : beside that in the
    query's, (…, rows, dim). scatters : the variance of ‖error‖² of each of the three, from finitely many noises.
    """

    in_query: Array | float
    in_key: Array | float
    in_value: Array | float
    rest: Array | float
    scatters: Array


class Ways:
    """The ways back through one block, with what they share.

    p2, t2, cross : P², T² and P ∘ T; bent_p2, bent_t2, bent_cross : the same times f'². A sink's key and value are none
    of the problem's, so that its f' and its weight in ∂L/∂v count as 0.
    """

    def __init__(self, back: Backward) -> None:
        part, self.p, self.t = back.part, back.soft.weights, back.slopes
        self.k, self.slope = part.k, back.soft.slope
        self.real = np.arange(self.p.shape[-1]) < self.p.shape[-1] - 1 if part.sink else None
        if self.real is not None:
            self.slope = self._value(np.ones_like(self.p) if self.slope is None else self.slope)
        self.factor = part.scale**2
        self.g2, self.q2, self.k2 = back.g**2, part.q**2 * self.factor, part.k**2 * self.factor
        self.mean_key, self.pull = self._bent(self.p) @ part.k, self._bent(self.t) @ part.k
        self.key_norms = self._bent(self.k2.sum(axis=-1)[..., None, :], 2)
        self.query_norms, self.g_norms = (x.sum(axis=-1, keepdims=True) for x in (self.q2, self.g2))
        self.p2, self.t2, self.cross, self.less_2p = self.p**2, self.t**2, self.p * self.t, 1 - 2 * self.p
        self.bent_p2, self.bent_t2, self.bent_cross = (
            self._bent(x, 2) for x in (self.p2, self.t2, self.cross)
        )
        self.value_p2 = self._value(self.p2)
        self.sum_p2, self.sum_value_p2, self.sum_t2, self.sum_cross = (
            x.sum(axis=-1, keepdims=True)
            for x in (self.bent_p2, self.value_p2, self.bent_t2, self.bent_cross)
        )
        self.of_queries, self.of_keys, self.of_gradient = (_Vectors(x) for x in (part.q, part.k, back.g))

    def _bent(self, x: Array, power: int = 1) -> Array:
        return x if self.slope is None else x * self.slope**power

    def through(self, *noises: Noise) -> tuple[tuple[Array, float], ...]:
        """Of independent noises together the variances of the gradients of query, key and value, and their scatters."""
        *pairs, rest, scatters = (sum(parts) for parts in zip(*noises, strict=True))
        by_query, by_key, by_value = (np.broadcast_to(one, self.p.shape) for one in pairs)
        found = by_query @ self.k2 + rest, turned(by_key) @ self.q2, turned(by_value) @ self.g2
        # expansions cancel: none is below 0
        return tuple((np.maximum(one, 0.0), float(scatters[at])) for at, one in enumerate(found))

    def from_scores(self, variance: Array) -> Noise:
        """From δs of these variances, (…, rows, keys)."""
        pp, tt, pt = self.p2 * variance, self.t2 * variance, self.cross * variance
        sum_pp, sum_tt, sum_pt = (x.sum(axis=-1, keepdims=True) for x in (pp, tt, pt))
        once, twice = pp * self.less_2p, 1 - 4 * self.p
        of_p = once + self.p2 * sum_pp
        of_t = tt * twice + self.t2 * sum_pp + 2 * self.cross * sum_pt + self.p2 * sum_tt
        reach = self._bent(tt, 2) * twice + tt * self.sum_p2 + pp * self.sum_t2 + 2 * pt * self.sum_cross
        length = self.factor * (self.pull**2).sum(axis=-1, keepdims=True)
        crossed = 2 * self.factor * self.pull * (self._bent(pt) @ self.k - self.mean_key * sum_pt)
        values = self._value(once) + pp * self.sum_value_p2
        return self._noise(
            self._bent(tt, 2),
            self._bent(of_t, 2),
            self._value(of_p),
            self._spread(tt, sum_tt) - crossed + self.factor * self.pull**2 * sum_pp,
            tt * self._distances - 2 * pt * self._along + pp * length,
            reach * self.query_norms,
            values * self.g_norms,
        )

    def from_products(self, variance: Array) -> Noise:
        """From δA, (…, rows, keys), where D is the sum of P ∘ A."""
        pp = self.p2 * variance
        bent, total = self._bent(pp, 2), pp.sum(axis=-1, keepdims=True)
        return self._noise(
            bent,
            self._bent(pp * self.less_2p + self.p2 * total, 2),
            0.0,
            self._spread(pp, total),
            pp * self._distances,
            (bent * self.less_2p + pp * self.sum_p2) * self.query_norms,
        )

    def from_raw_slopes(self, variance: Array) -> Noise:
        """From δr, (…, rows, keys)."""
        scatters = self.of_keys.scatter(variance), self.of_queries.scatter(turned(variance)), 0.0
        return Noise(variance, variance, 0.0, 0.0, self.factor**2 * np.array(scatters))

    def from_offsets(self, variance: Array) -> Noise:
        """From δD, (…, rows, 1)."""
        query = self.factor * self.mean_key**2 * variance
        return self._noise(
            0.0,
            self.bent_p2 * variance,
            0.0,
            query,
            query.sum(axis=-1),
            self.sum_p2 * variance * self.query_norms,
        )

    def from_factors(self, variance: Array) -> Noise:
        """From a relative error of the row's weights, (…, rows, 1)."""
        query = self.factor * self.pull**2 * variance
        return self._noise(
            0.0,
            self.bent_t2 * variance,
            self.value_p2 * variance,
            query,
            query.sum(axis=-1),
            self.sum_t2 * variance * self.query_norms,
            self.sum_value_p2 * variance * self.g_norms,
        )

    def from_excess(self, variance: Array) -> Noise:
        """From Σ_jt_j, by the key that it comes to lie on, (…, rows, keys)."""
        variance = self._bent(variance, 2)
        query = (variance * self.k2.sum(axis=-1)[..., None, :]).sum(axis=-1)
        return self._noise(variance, variance, 0.0, 0.0, query, variance * self.query_norms)

    def from_sums(self, in_query: float, in_key: float, in_value: float) -> Noise:
        """From the roundings of the last sums: so much of the squares of their terms."""
        # spread over all partial sums: no scatter
        return Noise(in_query * self.bent_t2, in_key * self.bent_t2, in_value * self.p2, 0.0, np.zeros(3))

    def from_weights(self, variance: Array) -> Noise:
        """From δp in the sum for ∂L/∂v alone, (…, rows, keys)."""
        variance = self._value(variance)
        scatters = np.array([0.0, 0.0, self.of_gradient.scatter(turned(variance))])
        return Noise(0.0, 0.0, variance, 0.0, scatters)

    def _value(self, x: Array) -> Array:
        """Without the column of a sink."""
        return x if self.real is None else x * self.real

    def _spread(self, mass: Array, total: Array) -> Array:
        """scale² Σ_j mass_j (f'_j k_j − k̄)² less scale² Σ_j mass_j f'_j² k_j², by expansion. total : Σ_j mass_j."""
        crossed = self.mean_key * (self._bent(mass) @ self.k)
        return np.asarray(self.factor * (self.mean_key**2 * total - 2 * crossed))

    def _noise(
        self,
        in_query: Array | float,
        in_key: Array | float,
        in_value: Array | float,
        rest: Array | float,
        *energies: Array,
    ) -> Noise:
        """With ‖·‖² that each single noise gives to the query's, the key's and, where it has any, the value's."""
        found = [energy(one) for one in energies]
        return Noise(in_query, in_key, in_value, rest, np.array([*found, 0.0][:3]))

    @cached_property
    def _along(self) -> Array:
        """scale² t̄·(f'_j k_j − k̄), (…, rows, keys)."""
        own = (self.pull * self.mean_key).sum(axis=-1, keepdims=True)
        return np.asarray(self.factor * (self._bent(self.pull @ turned(self.k)) - own))

    @cached_property
    def _distances(self) -> Array:
        """scale² |f'_j k_j − k̄|², (…, rows, keys)."""
        crossed = self._bent(self.factor * self.mean_key @ turned(self.k))
        own = self.factor * (self.mean_key**2).sum(axis=-1, keepdims=True)
        return np.asarray(np.maximum(self.key_norms - 2 * crossed + own, 0.0))


class _Vectors:
    """x, (…, n, dim), and what sums of x_j x_jᵀ with several variances share."""

    def __init__(self, x: Array) -> None:
        self.x = x

    @cached_property
    def _squared(self) -> Array:
        """(x_j·x_l)², (…, n, n)."""
        return np.asarray((self.x @ turned(self.x)) ** 2)

    def scatter(self, variance: Array) -> float:
        """2 Σ_i ‖Σ_j var_ij x_j x_jᵀ‖_F²: the scatter of Σ_i |Σ_j ε_ij x_j|², where many x_j may point one way.

        variance : (…, m, n). Of many rows every so many stand for the others: it says how much an error may scatter,
        not how large it is.
        """
        every, (n, dim) = variance.shape[-2], self.x.shape[-2:]
        variance = variance[..., :: max(1, every // _SAMPLED), :]
        rows = variance.shape[-2]
        if n * (dim + rows) <= 2 * rows * dim**2:
            found = ((variance @ self._squared) * variance).sum()
        else:
            across = turned(self.x)
            found = sum((((across * variance[..., i, None, :]) @ self.x) ** 2).sum() for i in range(rows))
        return float(SCATTER * every / rows * found)
