"""Requirement: what dropout on the attention weights does to the output's mean and variance."""

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, finite_array, probability_rows, real


def dropout_variance(weights: ArrayLike, values: ArrayLike, probability: float) -> Array:
    """Var o = p/(1 − p) Σ_j P_j² v_j², weights zeroed with probability p and the rest scaled 1/(1 − p).

    weights : P, (..., keys), rows summing to 1; values : (..., keys, value_dim). Returns (..., value_dim),
    squared units of the values. E o is unchanged (Srivastava et al. 2014). The variance is per component;
    components of one row share their mask and are correlated.

    Raises ValueError for p outside [0, 1), non-finite input or shapes that do not match.
    """
    rate = real("probability", probability, least=0.0)
    if rate >= 1:
        raise ValueError(f"probability must be < 1, got {rate:g}")
    p = probability_rows("weights", weights)
    v = finite_array("values", values, 2)
    if v.shape[-2] != p.shape[-1]:
        raise ValueError(f"values must have {p.shape[-1]} keys on axis -2 as weights do, got shape {v.shape}")
    return np.asarray(rate / (1 - rate) * ((p * p)[..., None, :] @ (v * v))[..., 0, :])
