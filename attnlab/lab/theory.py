"""What theory predicts, as pure functions in float64: all of `attnlab.theory`. SciPy loads with what needs it.

The closed formulas stand here: of a score, of a row of softmax weights, of scales other than 1/√d. Integrals over
random logits are in `random_logits`, error budgets in `attnlab.correctness`.

The score is s = scale · Σ_c q_c k_c over d components that are independent, and symmetric about their mean.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from attnlab.correctness.error_budget import ErrorBudget, classify, error_budget, precision_classes
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES, gradient_budgets
from attnlab.correctness.numbers import (
    ROUNDING_RMS,
    Array,
    finite_array,
    float_format,
    overflow_threshold,
    probability_rows,
    real,
    underflow_threshold,
    unit_roundoff,
    whole,
)
from attnlab.lab.random_logits import (
    RandomEnergy,
    attention_under_random_inputs,
    critical_beta,
    random_energy,
)

__all__ = ["GRADIENT_CLASSES", "ROUNDING_RMS", "DotProductMoments", "ErrorBudget", "RandomEnergy"]
__all__ += ["attention_under_random_inputs", "classify", "critical_beta", "dot_product_moments"]
__all__ += ["error_budget", "float_format", "gradient_budgets", "initial_logit_variance"]
__all__ += ["jacobian_norm_squared", "largest_possible_weight", "output_response", "overflow_threshold"]
__all__ += ["precision_classes", "random_energy", "required_gap", "underflow_threshold", "unit_roundoff"]


@dataclass(frozen=True)
class DotProductMoments:
    """Moments of one score, and the error of a pooled variance.

    mean, variance : of s, in units of the score and their square.
    kurtosis : E(s − E s)⁴ / variance²; NaN if the variance is 0.
    """

    mean: float
    variance: float
    kurtosis: float
    # Var E[(s − E s)² | q] and the same given k, in units of variance²: what sharing q or k contributes
    query_share: float = field(repr=False)
    key_share: float = field(repr=False)

    def variance_standard_error(self, n_queries: int, n_keys: int) -> float:
        """Standard error of the mean of (s − E s)² over all n × m scores, in units of the variance.

        Rows share q and columns share k, so the nm squares are not independent:
        (SE/Var)² = [(κ_s − 1) + (m − 1)c_q + (n − 1)c_k]/(nm), c_q = Var E[(s − E s)²|q]/Var², which is (κ_q − 1)/d for
        zero means. Leading order for a variance about the sample mean instead. Raises ValueError for counts below 1.
        """
        n, m = whole("n_queries", n_queries, 1), whole("n_keys", n_keys, 1)
        if self.variance == 0:
            return 0.0
        shared = (m - 1) * self.query_share + (n - 1) * self.key_share
        return self.variance * math.sqrt((self.kurtosis - 1 + shared) / (n * m))


def dot_product_moments(
    head_dim: int,
    *,
    query_std: float = 1.0,
    key_std: float = 1.0,
    query_mean: float = 0.0,
    key_mean: float = 0.0,
    query_kurtosis: float = 3.0,
    key_kurtosis: float = 3.0,
    scale: float = 1.0,
) -> DotProductMoments:
    """Exact moments of s = scale · Σ_c q_c k_c, for q independent of k.

    head_dim : d >= 1, the number of components.
    query_std, key_std : σ_q, σ_k >= 0 of each component.
    query_mean, key_mean : μ_q, μ_k, the same for every component.
    query_kurtosis, key_kurtosis : κ = E(x − μ)⁴/σ⁴ >= 1 of each component; 3 normal, 1.8 uniform, 1 Rademacher, 6
        Laplace. Components are independent, and symmetric about their mean.
    scale : factor on the sum.

    Zero means: Var = d σ_q²σ_k² (σ⁴d, not σ²d), kurtosis 3 + (κ_qκ_k − 3)/d. With means Var gains
    d(σ_q²μ_k² + σ_k²μ_q²). The variance argument for 1/√d is Vaswani et al. 2017, §3.2.1.

    Raises ValueError for numbers outside these domains.
    """
    d, scale = whole("head_dim", head_dim, 1), real("scale", scale)
    vq, vk = real("query_std", query_std, least=0.0) ** 2, real("key_std", key_std, least=0.0) ** 2
    mean = scale * d * real("query_mean", query_mean) * real("key_mean", key_mean)
    mq, mk = query_mean**2, key_mean**2
    # fourth moments; one product less its mean is μ_q b + μ_k a + ab with a, b symmetric: odd mixed moments vanish
    fq = real("query_kurtosis", query_kurtosis, least=1.0) * vq * vq
    fk = real("key_kurtosis", key_kurtosis, least=1.0) * vk * vk
    one = mq * vk + mk * vq + vq * vk
    fourth = mq**2 * fk + mk**2 * fq + fq * fk + 6 * (mq * mk * vq * vk + mq * vq * fk + mk * fq * vk)
    if one == 0:
        return DotProductMoments(mean, 0.0, math.nan, 0.0, 0.0)

    # E[(s − E s)² | q] = σ_k² Σ(μ_q + a)² + μ_k² (Σa)², whose variance over q follows
    def share(v: float, f: float, m: float, other_v: float, other_m: float) -> float:
        squares = d * (4 * m * v + f - v * v)
        sum_squared = d * f + 3 * d * (d - 1) * v * v - (d * v) ** 2
        cross = d * (f - v * v)
        total = other_v**2 * squares + other_m**2 * sum_squared + 2 * other_v * other_m * cross
        return total / (d * one) ** 2

    kurtosis = 3 + (fourth / one**2 - 3) / d
    return DotProductMoments(
        mean, scale**2 * d * one, kurtosis, share(vq, fq, mq, vk, mk), share(vk, fk, mk, vq, mq)
    )


def output_response(weights: ArrayLike, values: ArrayLike) -> Array:
    """∂o/∂s_j = p_j(v_j − o), o = Σ p_j v_j: the fluctuation–dissipation relation of one row.

    weights : (..., keys), rows summing to 1; values : (..., keys, value_dim). Returns
    (..., keys, value_dim). By it dL/dk_j = scale · p_j((v_j − o)·dO) q.

    Raises ValueError for values that are not finite, or shapes that do not match.
    """
    p, v = probability_rows("weights", weights), finite_array("values", values, 2)
    if v.shape[-2] != p.shape[-1]:
        raise ValueError(f"values must have {p.shape[-1]} keys on axis -2 as weights do, got shape {v.shape}")
    return np.asarray(p[..., None] * (v - p[..., None, :] @ v))


def jacobian_norm_squared(weights: ArrayLike) -> Array:
    """‖diag p − ppᵀ‖_F² per row, with a small relative error however saturated the row.

    weights : (..., keys), non-negative, rows summing to 1. Returns (...), dimensionless, float64.

    S₂ − 2S₃ + S₂², S_k = Σp^k, is exact, but it cancels to 0 or below where a row saturates. Here every term is
    positive: (p_i Σr)² + Σr²(1 − r)² + 2p_i²Σr² + ((Σr²)² − Σr⁴), i the argmax and r the other weights. The sum of r
    stands for 1 − p_i, so the result follows the small weights and not the rounding of the large one.
    Weights below about 1e-154 square to 0.

    Raises ValueError for weights that are empty, not finite, negative, or whose rows do not sum to 1.
    """
    p = probability_rows("weights", weights)
    at = np.expand_dims(p.argmax(axis=-1), -1)
    largest, others = np.take_along_axis(p, at, axis=-1)[..., 0], p.copy()
    np.put_along_axis(others, at, 0.0, axis=-1)
    rest = others.sum(axis=-1)
    squares = others * others
    second = squares.sum(axis=-1)
    # Σ_{j≠k} r_j²r_k² = (Σr²)² − Σr⁴; where one r dominates, the difference is far below the other terms
    pairs = np.maximum(second * second - (squares * squares).sum(axis=-1), 0.0)
    diagonal = (largest * rest) ** 2 + (squares * (1 - others) ** 2).sum(axis=-1)
    return np.asarray(diagonal + 2 * largest * largest * second + pairs)


def largest_possible_weight(n: int, gap: float) -> float:
    """1/(1 + (n − 1)e^{−Δ}): no weight of n keys exceeds it, Δ = max − min logit. A soft cap c keeps Δ below 2c.

    n >= 1, Δ >= 0, else ValueError. Veličković et al. 2024 for the consequence that sharpness must
    disperse with n at bounded logits.
    """
    n = whole("n", n, 1)
    return 1 / (1 + (n - 1) * math.exp(-real("gap", gap, least=0.0)))


def required_gap(n: int, weight: float) -> float:
    """Δ = ln((n − 1)w/(1 − w)): the gap max − min that a weight w over n keys needs at least.

    n >= 2, 1/n <= w < 1, else ValueError. It is 14.0 for w = .9 at n = 131072.
    """
    n = whole("n", n, 2)
    weight = real("weight", weight, least=1 / n)
    if weight >= 1:
        raise ValueError(f"weight must be < 1, got {weight:g}")
    return max(math.log((n - 1) * weight / (1 - weight)), 0.0)


def initial_logit_variance(model_dim: int, weight_std: float, bias_std: float = 0.0) -> float:
    """Var(q·k/√d_k) = (E σ_w² + σ_b²)² at initialisation, E = model_dim, for |x|² = E (as after a layer norm).

    weight_std, bias_std : σ_w, σ_b >= 0 of both projections; so a component of q or k has variance E σ_w² + σ_b².
    `nn.MultiheadAttention` draws one Xavier matrix, σ_w² = 1/2E: ¼. Separate Xavier matrices have 1/E: 1. `nn.Linear`'s
    default has σ_w² = σ_b² = 1/3E: (1/3 + 1/3E)².

    Glorot and Bengio 2010 for Xavier. Raises ValueError for numbers outside these domains.
    """
    width = whole("model_dim", model_dim, 1)
    weight, bias = real("weight_std", weight_std, least=0.0), real("bias_std", bias_std, least=0.0)
    return (width * weight**2 + bias**2) ** 2
