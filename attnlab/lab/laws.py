"""Closed formulas: of the score of two random vectors, of every row of softmax weights, of scales other than 1/√d.

The score s = scale · Σ_c q_c k_c over d components: its moments, the error of measuring them, and its law. Moments have
two routes, both exact. Independent symmetric components of any kurtosis: sums of products. Jointly normal vectors, with
covariances or a correlation: cumulants of a bilinear form. What has no closed form is refused. The law of two
independent normal vectors: s/σ, σ = scale σ_q σ_k, is the difference of two Gamma(d/2, 1) variables, a variance-gamma
law. Given ‖q‖ it is normal, hence s/σ = χ_d · N(0, 1), by which the distribution function is computed.

A row of weights, exact to rounding: bounds of ln Z, and the response of the output ∂o/∂s_j = p_j(v_j − o). Logits of −∞
are masked keys. ‖J‖_F² = S₂ − 2S₃ + S₂² of J = diag p − ppᵀ, S_k = Σp^k, is exact and useless where a row saturates: it
cancels to 0 or below. With i the argmax, r the other weights and p_i Σr in place of p_i(1 − p_i), every term is
positive.

Logits at initialisation: with |x|² = d_model (after a layer norm) and weights of variance σ_w², a component of q or
k has variance d_model σ_w², and so Var(logit) = (d_model σ_w²)² under the scale 1/√d_k, at any d_k.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnlab.correctness.numbers import Array, finite_array, one_of, probability_rows, real, whole

_CHUNK = 2048


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
    paired: bool = field(repr=False, default=False)

    def variance_standard_error(self, n_queries: int, n_keys: int) -> float:
        """Standard error of the mean of (s − E s)² over all n × m scores, in units of the variance.

        Rows share q and columns share k, so the nm squares are not independent:
        (SE/Var)² = [(κ_s − 1) + (m − 1)c_q + (n − 1)c_k]/(nm), c_q = Var E[(s − E s)²|q]/Var², which is
        (κ_q − 1)/d for zero means, and 2 tr((Σ_qΣ_k)²)/tr(Σ_qΣ_k)² for normal vectors. Leading order for a variance
        about the sample mean instead.

        With correlated q and k no query is correlated with every key: n_keys must be 1, meaning n_queries
        independent pairs. Raises ValueError for counts below 1 and for that.
        """
        n, m = whole("n_queries", n_queries, 1), whole("n_keys", n_keys, 1)
        if self.paired and m != 1:
            raise ValueError(f"n_keys must be 1 for correlated queries and keys (independent pairs), got {m}")
        if self.variance == 0:
            return 0.0
        shared = (m - 1) * self.query_share + ((n - 1) * self.key_share if m > 1 or not self.paired else 0.0)
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
    correlation: float = 0.0,
    query_covariance: ArrayLike | None = None,
    key_covariance: ArrayLike | None = None,
    scale: float = 1.0,
) -> DotProductMoments:
    """Exact moments of s = scale · Σ_c q_c k_c, for q independent of k unless `correlation` says otherwise.

    head_dim : d >= 1, the number of components.
    query_std, key_std : σ_q, σ_k >= 0 of each component.
    query_mean, key_mean : μ_q, μ_k, the same for every component.
    query_kurtosis, key_kurtosis : κ = E(x − μ)⁴/σ⁴ >= 1 of each component; 3 normal, 1.8 uniform,
        1 Rademacher, 6 Laplace. Components are independent, and symmetric about their mean.
    correlation : ρ in [−1, 1] between q_c and k_c, jointly normal.
    query_covariance, key_covariance : (d, d), symmetric and non-negative, of normal vectors; one not given is
        std² I.
    scale : factor on the sum.

    Zero means: Var = d σ_q²σ_k² (σ⁴d, not σ²d), kurtosis 3 + (κ_qκ_k − 3)/d. With means Var gains
    d(σ_q²μ_k² + σ_k²μ_q²). Covariances: Var = tr(Σ_qΣ_k), kurtosis 3 + 6 tr((Σ_qΣ_k)²)/tr(Σ_qΣ_k)².
    Correlation, σ = 1: E = dρ, Var = d(1 + ρ²). Means with either enter through the r-th cumulant of a
    bilinear form zᵀAz of a normal z, 2^{r−1}(r − 1)! [tr((AΣ)^r) + r μᵀA(ΣA)^{r−1}μ] (Mathai and Provost
    1992). The variance argument for 1/√d is Vaswani et al. 2017, §3.2.1.

    Raises ValueError for numbers outside these domains, and where no closed form exists: a kurtosis other
    than 3 with a covariance or a correlation; a covariance with a correlation, or with a std of its own.
    """
    d = whole("head_dim", head_dim, 1)
    stds = real("query_std", query_std, least=0.0), real("key_std", key_std, least=0.0)
    means = real("query_mean", query_mean), real("key_mean", key_mean)
    kurtoses = (
        real("query_kurtosis", query_kurtosis, least=1.0),
        real("key_kurtosis", key_kurtosis, least=1.0),
    )
    rho, scale = real("correlation", correlation, least=-1.0), real("scale", scale)
    if rho > 1:
        raise ValueError(f"correlation must be <= 1, got {rho:g}")
    given = query_covariance is not None or key_covariance is not None
    if kurtoses != (3.0, 3.0) and (given or rho != 0):
        raise ValueError("kurtoses must be 3 with a covariance or a correlation, which are of normal vectors")
    if given and rho != 0:
        raise ValueError("correlation must be 0 with a covariance: the cross-covariance would be undefined")
    if given:
        sigma = np.zeros((2 * d, 2 * d))
        sigma[:d, :d] = _covariance("query", query_covariance, d, stds[0])
        sigma[d:, d:] = _covariance("key", key_covariance, d, stds[1])
        return _normal(sigma, np.repeat(means, d), scale)
    if rho != 0:
        between = rho * stds[0] * stds[1]
        sigma = np.array([[stds[0] ** 2, between], [between, stds[1] ** 2]])
        return _normal(sigma, np.array(means), scale, d, paired=True)
    return _independent(d, stds, means, kurtoses, scale)


def _covariance(name: str, matrix: ArrayLike | None, d: int, std: float) -> Array:
    if matrix is None:
        return np.eye(d) * std**2
    if std != 1.0:
        raise ValueError(f"{name}_std must be left at 1 where {name}_covariance is given, got {std:g}")
    found = finite_array(f"{name}_covariance", matrix)
    if found.shape != (d, d):
        raise ValueError(f"{name}_covariance must have shape ({d}, {d}), got {found.shape}")
    largest = float(np.abs(found).max())
    if np.abs(found - found.T).max() > 1e-10 * largest:
        raise ValueError(f"{name}_covariance must be symmetric")
    if np.linalg.eigvalsh(found)[0] < -1e-10 * largest:
        raise ValueError(f"{name}_covariance must have no negative eigenvalue")
    return found


def _independent(
    d: int, stds: tuple[float, float], means: tuple[float, float], kurtoses: tuple[float, float], scale: float
) -> DotProductMoments:
    """One product minus its mean is μ_q b + μ_k a + ab with a, b symmetric; odd mixed moments vanish."""
    (vq, vk), (mq, mk) = (stds[0] ** 2, stds[1] ** 2), (means[0] ** 2, means[1] ** 2)
    fq, fk = kurtoses[0] * vq * vq, kurtoses[1] * vk * vk  # fourth moments
    one = mq * vk + mk * vq + vq * vk
    fourth = mq**2 * fk + mk**2 * fq + fq * fk + 6 * (mq * mk * vq * vk + mq * vq * fk + mk * fq * vk)

    # E[(s − E s)² | q] = σ_k² Σ(μ_q + a)² + μ_k² (Σa)², whose variance over q follows
    def share(v: float, f: float, m: float, other_v: float, other_m: float) -> float:
        squares = d * (4 * m * v + f - v * v)
        sum_squared = d * f + 3 * d * (d - 1) * v * v - (d * v) ** 2
        cross = d * (f - v * v)
        return other_v**2 * squares + other_m**2 * sum_squared + 2 * other_v * other_m * cross

    variance = d * one
    if variance == 0:
        return DotProductMoments(scale * d * means[0] * means[1], 0.0, math.nan, 0.0, 0.0)
    return DotProductMoments(
        mean=scale * d * means[0] * means[1],
        variance=scale**2 * variance,
        kurtosis=3 + (fourth / one**2 - 3) / d,
        query_share=share(vq, fq, mq, vk, mk) / variance**2,
        key_share=share(vk, fk, mk, vq, mq) / variance**2,
    )


def _normal(sigma: Array, mu: Array, scale: float, pairs: int = 1, paired: bool = False) -> DotProductMoments:
    """z = (q, k) is normal: the cumulants of zᵀAz, A being ½I off the diagonal, so many independent times."""
    d = mu.size // 2
    form = np.kron([[0.0, 0.5], [0.5, 0.0]], np.eye(d))
    turn = sigma @ form
    square = turn @ turn
    mean = scale * pairs * float(mu @ form @ mu + np.trace(turn))
    variance = pairs * 2 * float(np.trace(square) + 2 * mu @ form @ turn @ mu)
    if variance == 0:
        return DotProductMoments(mean, 0.0, math.nan, 0.0, 0.0)
    fourth = pairs * 48 * float((square * square.T).sum() + 4 * mu @ form @ turn @ square @ mu)

    def share(own: slice, others: slice) -> float:
        # E[(s − E s)²|q] = (μ_q + a)ᵀΣ_k(μ_q + a) + (μ_kᵀa)², a quadratic form in the normal a
        left, right, m = sigma[own, own], sigma[others, others], mu[own]
        both = (right + np.outer(mu[others], mu[others])) @ left
        return float(2 * (both * both.T).sum() + 4 * m @ right @ left @ right @ m) / variance**2

    query, key = slice(0, d), slice(d, None)
    return DotProductMoments(
        mean=mean,
        variance=scale**2 * variance,
        kurtosis=3 + fourth / variance**2,
        query_share=0.0 if paired else share(query, key),
        key_share=0.0 if paired else share(key, query),
        paired=paired,
    )


# -- the law of independent normal vectors


def score_characteristic_function(t: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """E e^{its} = (1 + σ²t²)^{−d/2}, real as the law is symmetric. Shape of `t`.

    t : reciprocal score units.
    head_dim : d >= 1.
    scale : σ = |scale| σ_q σ_k > 0, the product of the scale and both standard deviations.

    Zero means, components iid normal (Madan, Carr and Chang 1998 for the law). Raises ValueError for d < 1, σ <= 0 or a
    t that is not finite.
    """
    d, sigma = _law(head_dim, scale)
    return np.asarray(np.exp(-0.5 * d * np.log1p((sigma * finite_array("t", t)) ** 2)))


def score_cdf(s: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """P(S <= s) = E Φ(s/(σχ_d)), absolute error below 1e-13. Shape of `s`.

    The trapezoid rule in ln χ, where the integrand is analytic and its ends vanish fast. Its cost is some
    400 normal distribution functions a point. Arguments and errors as `score_characteristic_function`.
    """
    d, sigma = _law(head_dim, scale)
    x = finite_array("s", s) / sigma
    tail = _tail(np.abs(x), d)
    # at 0 and above the complement of the tail, so that each side keeps its relative accuracy
    return np.asarray(np.where(x < 0, tail, 1 - tail))


def _tail(x: Array, d: int) -> Array:
    """E Φ(−x/r) over r ~ χ_d, by the trapezoid rule in ln r."""
    from scipy.special import gammaln, ndtr

    step = min(0.1, 0.3 / math.sqrt(2 * d))
    reach = 40 / d + 12 / math.sqrt(d)  # the left tail is e^{d·ln χ}, the right falls off doubly fast
    log_radius = 0.5 * math.log(d) + np.arange(-reach, min(reach, 2.5) + step, step)
    radius = np.exp(log_radius)
    log_mass = d * log_radius - 0.5 * radius**2 - (d / 2 - 1) * math.log(2.0) - float(gammaln(d / 2))
    mass = np.exp(log_mass) * step
    flat = x.reshape(-1)
    mean = np.empty_like(flat)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK, None]
        mean[start : start + _CHUNK] = ndtr(-part / radius) @ mass
    return mean.reshape(x.shape)


def _law(head_dim: int, scale: float) -> tuple[int, float]:
    return whole("head_dim", head_dim, 1), real("scale", scale, above=0.0)


# -- a row of weights


class Bounds(NamedTuple):
    """lower <= quantity <= upper, one value a row."""

    lower: Array
    upper: Array


def scaled_log_partition_bounds(logits: ArrayLike, beta: float) -> Bounds:
    """max s <= β⁻¹ ln Z <= max s + ln n/β, n the number of unmasked keys. Shapes (...).

    logits : (..., keys). Raises ValueError for β <= 0, for NaN and +∞, and for a row without a key.
    """
    beta, s = real("beta", beta, above=0.0), _logits(logits)
    top = s.max(axis=-1)
    return Bounds(top, top + np.log(np.isfinite(s).sum(axis=-1)) / beta)


def log_partition_bounds(logits: ArrayLike) -> Bounds:
    """ln n + s̄ <= ln Z <= ln n + s̄ + Δ²/8, Δ = max s − min s (Jensen 1906; Hoeffding 1963).

    logits : (..., keys), of which masked keys count in no term. Shapes (...). Raises ValueError as
    `scaled_log_partition_bounds` does.
    """
    s = _logits(logits)
    open_keys = np.isfinite(s)
    count = open_keys.sum(axis=-1)
    mean = np.where(open_keys, s, 0.0).sum(axis=-1) / count
    spread = s.max(axis=-1) - np.where(open_keys, s, math.inf).min(axis=-1)
    lower = np.log(count) + mean
    return Bounds(lower, lower + spread**2 / 8)


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


def _logits(logits: ArrayLike) -> Array:
    """In float64, with −∞ at masked keys and at least one other key a row."""
    s = np.asarray(logits, dtype=np.float64)
    if s.ndim == 0 or s.shape[-1] == 0 or s.size == 0:
        raise ValueError(f"logits must have at least one key along the last axis, got shape {s.shape}")
    if np.isnan(s).any() or (s == math.inf).any():
        raise ValueError("logits must be finite or -inf, got a NaN or +inf")
    if (s.max(axis=-1) == -math.inf).any():
        raise ValueError("logits must leave one key unmasked in every row, got a row of -inf only")
    return s


def jacobian_norm_squared(weights: ArrayLike) -> Array:
    """‖diag p − ppᵀ‖_F² per row, with a small relative error however saturated the row.

    weights : (..., keys), non-negative, rows summing to 1. Returns (...), dimensionless, float64.

    (p_i Σr)² + Σr²(1 − r)² + 2p_i²Σr² + ((Σr²)² − Σr⁴), i the argmax and r the other weights. The sum of r
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


def scalable_softmax_beta(n: int, slope: float) -> float:
    """β = s ln n, the logit std of scalable softmax over unit-variance scores (Nakanishi 2025).

    n : keys, >= 1.
    slope : s >= 0.

    Raises ValueError outside.
    """
    return real("slope", slope, least=0.0) * math.log(whole("n", n, 1))


def scalable_softmax_freezing_length(slope: float) -> float:
    """n = e^{2/s²}: scalable softmax has β = s ln n > β_c = √(2 ln n) at any greater length.

    slope : s > 0, else ValueError. Infinite where it exceeds float64.
    """
    exponent = 2 / real("slope", slope, above=0.0) ** 2
    return math.exp(exponent) if exponent < 709.78 else math.inf


def largest_possible_weight(n: int, gap: float) -> float:
    """1/(1 + (n − 1)e^{−Δ}): no weight of n keys exceeds it, Δ = max − min logit.

    n >= 1, Δ >= 0, else ValueError. Veličković et al. 2024 for the consequence that sharpness must
    disperse with n at bounded logits.
    """
    n = whole("n", n, 1)
    return 1 / (1 + (n - 1) * math.exp(-real("gap", gap, least=0.0)))


def soft_cap_largest_weight(n: int, cap: float) -> float:
    """1/(1 + (n − 1)e^{−2c}): the largest weight under the soft cap c tanh(s/c), where Δ < 2c.

    n >= 1, c > 0, else ValueError.
    """
    return largest_possible_weight(n, 2 * real("cap", cap, above=0.0))


def required_gap(n: int, weight: float) -> float:
    """Δ = ln((n − 1)w/(1 − w)): the gap max − min that a weight w over n keys needs at least.

    n >= 2, 1/n <= w < 1, else ValueError. It is 14.0 for w = .9 at n = 131072.
    """
    n = whole("n", n, 2)
    weight = real("weight", weight, least=1 / n)
    if weight >= 1:
        raise ValueError(f"weight must be < 1, got {weight:g}")
    return max(math.log((n - 1) * weight / (1 - weight)), 0.0)


SCHEMES = ("fused_xavier", "xavier", "linear_default", "normal")


def initial_logit_variance(model_dim: int, scheme: str, weight_std: float | None = None) -> float:
    """Var(q·k/√d_k) at initialisation for an input with |x|² = model_dim, dimensionless.

    model_dim : E >= 1.
    scheme : "fused_xavier", one Xavier-uniform (3E)×E matrix as in `nn.MultiheadAttention`, ¼;
        "xavier", separate E×E Xavier matrices, 1; "linear_default", `nn.Linear`'s uniform ±1/√E with bias,
        (1/3 + 1/(3E))²; "normal", N(0, weight_std²), (E σ_w²)².
    weight_std : σ_w >= 0, for "normal" and only there.

    Glorot and Bengio 2010 for Xavier. Raises ValueError for other schemes or sizes, or a missing or idle
    `weight_std`.
    """
    width = whole("model_dim", model_dim, 1)
    one_of("scheme", scheme, SCHEMES)
    if (scheme == "normal") != (weight_std is not None):
        need = "needs weight_std" if scheme == "normal" else "takes no weight_std"
        raise ValueError(f"scheme {scheme!r} {need}")
    if weight_std is not None:
        return (width * real("weight_std", weight_std, least=0.0) ** 2) ** 2
    component = {"fused_xavier": 1 / 2, "xavier": 1.0, "linear_default": 1 / 3 + 1 / (3 * width)}[scheme]
    return component * component
