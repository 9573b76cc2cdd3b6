"""What theory predicts, as pure functions in float64. This is `attnlab.theory`. SciPy is imported when it is needed.

First come closed formulas: for a score, for a row of softmax weights, for scales other than 1/√d. Then come integrals
over random logits. Error budgets are in `attnlab.correctness`.

The score is s = scale · Σ_c q_c k_c over d components that are independent, and symmetric about their mean.
"""

import math
import operator
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from attnlab.correctness.error_budget import ROUNDING_RMS, ErrorBudget, classify, error_budget
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES, gradient_budgets
from attnlab.workload.number_formats import Array, float_format, overflow_threshold, underflow_threshold

__all__ = ["GRADIENT_CLASSES", "ROUNDING_RMS", "DotProductMoments", "ErrorBudget", "RandomEnergy"]
__all__ += ["attention_under_random_inputs", "classify", "critical_beta", "dot_product_moments"]
__all__ += ["error_budget", "float_format", "gradient_budgets", "initial_logit_variance"]
__all__ += ["jacobian_norm_squared", "largest_possible_weight", "output_response", "overflow_threshold"]
__all__ += ["random_energy", "required_gap", "underflow_threshold"]


# -- numbers outside the domain of a formula are refused in one line, before any arithmetic


def whole(name: str, number: SupportsIndex, least: int) -> int:
    """`number` as an int that is at least `least`; a bool or a fraction is refused."""
    try:
        found = None if isinstance(number, bool | np.bool_) else operator.index(number)
    except TypeError:
        found = None
    if found is None or found < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {number!r}")
    return found


def real(name: str, number: float, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """`number` as a finite float with `number >= least` and `number > above`."""
    try:
        found = float(number)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {number!r}")
    if found < least:
        raise ValueError(f"{name} must be >= {least:g}, got {found:g}")
    if found <= above:
        raise ValueError(f"{name} must be > {above:g}, got {found:g}")
    return found


def finite_array(name: str, values: ArrayLike, least_ndim: int = 0) -> Array:
    """`values` as a float64 array without NaN or infinity and with at least `least_ndim` axes."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim < least_ndim:
        raise ValueError(f"{name} must have at least {least_ndim} axes, got shape {found.shape}")
    if found.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return found


def probability_rows(name: str, weights: ArrayLike, tolerance: float = 0.05) -> Array:
    """`weights` as float64 rows that are non-negative and sum to 1 within `tolerance`.

    The tolerance is wide because rows rounded to bfloat16 are legitimate input.
    """
    found = finite_array(name, weights, 1)
    if (found < 0).any():
        raise ValueError(f"{name} must be >= 0, got {found.min():g}")
    off = float(np.abs(found.sum(axis=-1) - 1).max())
    if off > tolerance:
        raise ValueError(f"{name} must sum to 1 along the last axis, got a row off by {off:.3g}")
    return found


@dataclass(frozen=True)
class DotProductMoments:
    """Moments of one score, and the error of a pooled variance.

    mean, variance : of s, in units of the score and of its square.
    kurtosis : E(s − E s)⁴ / variance²; NaN if the variance is 0.
    """

    mean: float
    variance: float
    kurtosis: float
    # Var E[(s − E s)² | q] and the same given k, in units of variance²: the contributions of shared q and shared k
    query_share: float = field(repr=False)
    key_share: float = field(repr=False)

    def variance_standard_error(self, n_queries: int, n_keys: int) -> float:
        """Standard error of the mean of (s − E s)² over all n × m scores, in units of the variance.

        Rows share q and columns share k, so the nm squares are not independent:
        (SE/Var)² = [(κ_s − 1) + (m − 1)c_q + (n − 1)c_k]/(nm), c_q = Var E[(s − E s)²|q]/Var², which is (κ_q − 1)/d for
        zero means. For a variance about the sample mean it holds to leading order. Raises ValueError for counts < 1.
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

    With zero means Var = d σ_q²σ_k² (σ⁴d, not σ²d), and the kurtosis is 3 + (κ_qκ_k − 3)/d. Other means add
    d(σ_q²μ_k² + σ_k²μ_q²) to Var. The variance argument for 1/√d is in Vaswani et al. 2017, §3.2.1.

    Raises ValueError for numbers outside these domains.
    """
    d, scale = whole("head_dim", head_dim, 1), real("scale", scale)
    vq, vk = real("query_std", query_std, least=0.0) ** 2, real("key_std", key_std, least=0.0) ** 2
    mean = scale * d * real("query_mean", query_mean) * real("key_mean", key_mean)
    mq, mk = query_mean**2, key_mean**2
    # fourth moments; one product minus its mean is μ_q b + μ_k a + ab with a, b symmetric: odd mixed moments vanish
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
    (..., keys, value_dim). It follows that dL/dk_j = scale · p_j((v_j − o)·dO) q.

    Raises ValueError for values that are not finite, or shapes that do not match.
    """
    p, v = probability_rows("weights", weights), finite_array("values", values, 2)
    if v.shape[-2] != p.shape[-1]:
        raise ValueError(f"values must have {p.shape[-1]} keys on axis -2 as weights do, got shape {v.shape}")
    return np.asarray(p[..., None] * (v - p[..., None, :] @ v))


def jacobian_norm_squared(weights: ArrayLike) -> Array:
    """‖diag p − ppᵀ‖_F² per row, with a small relative error also for saturated rows.

    weights : (..., keys), non-negative, rows summing to 1. Returns (...), dimensionless, float64.

    S₂ − 2S₃ + S₂², S_k = Σp^k, is exact, but it cancels to 0 or below if a row saturates. Here every term is
    positive: (p_i Σr)² + Σr²(1 − r)² + 2p_i²Σr² + ((Σr²)² − Σr⁴), i the argmax and r the other weights. Σr is used
    for 1 − p_i, so the result depends on the small weights and not on the rounding of the large one.
    The squares of weights below about 1e-162 are 0.

    Raises ValueError for weights that are empty, not finite, negative, or whose rows do not sum to 1.
    """
    p = probability_rows("weights", weights)
    at = np.expand_dims(p.argmax(axis=-1), -1)
    largest, others = np.take_along_axis(p, at, axis=-1)[..., 0], p.copy()
    np.put_along_axis(others, at, 0.0, axis=-1)
    rest = others.sum(axis=-1)
    squares = others * others
    second = squares.sum(axis=-1)
    # Σ_{j≠k} r_j²r_k² = (Σr²)² − Σr⁴; if one r dominates, the difference is far below the other terms
    pairs = np.maximum(second * second - (squares * squares).sum(axis=-1), 0.0)
    diagonal = (largest * rest) ** 2 + (squares * (1 - others) ** 2).sum(axis=-1)
    return np.asarray(diagonal + 2 * largest * largest * second + pairs)


def largest_possible_weight(n: int, gap: float) -> float:
    """1/(1 + (n − 1)e^{−Δ}): no weight of n keys exceeds it. Δ = max − min logit; a soft cap c keeps it below 2c.

    n >= 1, Δ >= 0, else ValueError. The consequence is in Veličković et al. 2024: with bounded logits the
    softmax must disperse as n grows.
    """
    n = whole("n", n, 1)
    return 1 / (1 + (n - 1) * math.exp(-real("gap", gap, least=0.0)))


def required_gap(n: int, weight: float) -> float:
    """Δ = ln((n − 1)w/(1 − w)): the smallest gap max − min of the logits at which a weight w over n keys is possible.

    n >= 2, 1/n <= w < 1, else ValueError. For w = .9 at n = 131072 the gap is 14.0.
    """
    n = whole("n", n, 2)
    weight = real("weight", weight, least=1 / n)
    if weight >= 1:
        raise ValueError(f"weight must be < 1, got {weight:g}")
    return max(math.log((n - 1) * weight / (1 - weight)), 0.0)


def initial_logit_variance(model_dim: int, weight_std: float, bias_std: float = 0.0) -> float:
    """Var(q·k/√d_k) = (D σ_w² + σ_b²)² over draws of the weights, D = model_dim, for |x|² = D (as after a layer norm).

    weight_std, bias_std : σ_w, σ_b >= 0 of both projections; so a component of q or k has variance D σ_w² + σ_b².
    The result is ¼ for `nn.MultiheadAttention`, which draws one Xavier matrix with σ_w² = 1/2D. It is 1 for separate
    Xavier matrices (1/D), and (1/3 + 1/3D)² for the default of `nn.Linear` (σ_w² = σ_b² = 1/3D).

    Xavier matrices: Glorot and Bengio 2010. Raises ValueError for numbers outside these domains.
    """
    width = whole("model_dim", model_dim, 1)
    weight, bias = real("weight_std", weight_std, least=0.0), real("bias_std", bias_std, least=0.0)
    return (width * weight**2 + bias**2) ** 2


# -- softmax over random logits ----------------------------------------------------------------------
#
# A softmax over n iid N(0, β²) logits is Derrida's random energy model. With t = e^τ, w = t e^{βx} and x ~ N(0, 1) let
#
#     φ(τ) = E e^{−w},    A_k(τ) = E[w^k e^{−w}].
#
# All expectations are then one-dimensional integrals over τ of smooth functions on the whole line:
#
#     E Σp^k    = n/Γ(k) ∫ A_k φ^{n−1} dτ                       (k = 1 gives 1: n A_1 φ^{n−1} is a density)
#     E ln Z    = −γ − ∫ τ n A_1 φ^{n−1} dτ                     (by parts from ∫(e^{−t} − φⁿ) dt/t)
#     E (Σp²)²  = E Σp⁴ + n(n−1)/Γ(4) ∫ A_2² φ^{n−2} dτ
#     E p_max   = n ∫dτ ∫dN(x) w e^{−w} G(τ, x)^{n−1},  G(τ, x) = ∫_{−∞}^x dN(y) e^{−e^{τ+βy}}
#     1 − E Σp² = n(n−1) ∫ A_1² φ^{n−2} dτ                      (two different keys; no cancellation)
#     E max s   = β n ∫ x Φ(x)^{n−1} dN(x)
#     E H       = E ln Z − β²(1 − E Σp²).
#
# The trapezoid rule on the whole line converges exponentially for such functions, in x as in τ. Its error
# is estimated by halving the spacing. The spacing follows the narrowest feature: the step of e^{−w}, of
# width 1/β in x, or the density of the largest of n normals, of width about 1/β_c.
#
# With independent normal queries and keys a row's logits are, given the query, exactly iid N(0, β²), β = ‖q‖ σ_k scale.
# So every expectation is the average over ‖q‖/σ_q ~ χ_d. The Gauss rule of the χ_d density itself is used, because the
# expectations are smooth in β >= 0, but not in β²: there E p_max has a square root at 0, and Gauss–Laguerre fails.

# Discarded probability of a tail, before multiplication by n if n copies share it.
_TAIL = 1e-18
# ln(1/_TAIL), the reach in τ of a function that decays like e^τ.
_REACH = 41.5
# The first spacing, in units of the narrowest feature, and how many spacings are tried; twice the first is its check.
_SPACING = 0.3
_REFINEMENTS = 4
# Largest accepted change when the spacing is halved. The running integral of E p_max is of fourth order, and everything
# else converges exponentially, so the remaining error is about 1/16 of the change.
_TOLERANCE = 2e-5


@dataclass(frozen=True)
class RandomEnergy:
    """Expectations over a row of n logits.

    n : number of keys.
    beta : standard deviation of the logits; if β itself is random, its root mean square.
    log_partition : E ln Σ e^s, in nats.
    entropy : E H, in nats.
    participation : E Σp², between 1/n and 1.
    largest_weight : E max p.
    jacobian_norm_squared : E‖diag p − ppᵀ‖_F².
    largest_logit : E max s.
    """

    n: int
    beta: float
    log_partition: float
    entropy: float
    participation: float
    largest_weight: float
    jacobian_norm_squared: float
    largest_logit: float


class _Grid(NamedTuple):
    """Nodes of the double integral: τ down the rows, x along the columns, y = τ + βx."""

    tau: Array  # (rows, 1)
    x: Array  # (rows or 1, columns)
    y: Array  # (rows, columns)
    tau_step: float
    x_step: float
    window: bool  # columns cover the step of e^{−w} only, not the whole normal law


def critical_beta(n: int) -> float:
    """β_c = √(2 ln n), the β at which n iid N(0, β²) logits freeze onto a few keys (Derrida 1981).

    Unscaled attention over standard normal inputs has a β of about √d_k, so it freezes above d_k = β_c².

    Raises ValueError unless n is a whole number >= 2.
    """
    return math.sqrt(2 * math.log(whole("n", n, 2)))


@lru_cache(maxsize=4096)
def random_energy(n: int, beta: float) -> RandomEnergy:
    """Exact expectations of a softmax over n iid N(0, β²) logits, by quadrature.

    n : number of keys, a whole number >= 2. Tested from 2 to 10^7.
    beta : standard deviation of the logits, >= 0 and finite. Tested from 0 to 64.

    The formulas are in the source above `RandomEnergy`; Derrida 1981, Bovier, Kurkova and Löwe 2002. At
    β = 0 they reduce to ln n, ln n, 1/n, 1/n, (n − 1)/n² and 0, up to about 1e-6.

    Raises ValueError for n < 2, for β < 0 or not finite, and if halving the spacing still changes a
    result by more than 2e-5 of itself (the remaining error is about 1e-6).
    """
    n = whole("n", n, 2)
    beta = real("beta", beta, least=0.0)
    # the quadrature needs β > 0, and a β as small as 1e-12 changes no result
    coarse = _expectations(n, max(beta, 1e-12), 2 * _SPACING)
    for refinement in range(_REFINEMENTS):
        fine = _expectations(n, max(beta, 1e-12), _SPACING / 2**refinement)
        change = float(np.max(np.abs(coarse / fine - 1)))
        if change <= _TOLERANCE:
            return RandomEnergy(n, beta, *fine.tolist())
        coarse = fine
    raise ValueError(
        f"random_energy did not converge at n={n}, beta={beta:g}: last change {change:.1e} > {_TOLERANCE:g}"
    )


def _grid(n: int, beta: float, spacing: float) -> _Grid:
    from scipy.special import ndtri

    level = critical_beta(n)
    # Left end: none of n draws of x lies above `highest`, and n w < 1e-18. Right end: one lies above `lowest`, w > 42.
    highest = -float(ndtri(_TAIL / n))
    lowest = float(ndtri(math.exp(-_REACH / (n - 1))))
    left = -beta * highest - _REACH - math.log(n)
    right = -beta * lowest + math.log(_REACH) + 0.1
    tau_step = spacing * max(1.0, beta / level)
    tau = np.arange(left, right + tau_step, tau_step)[:, None]
    window = beta >= 4.0
    if window:
        # e^{−w} differs from its limits 1 and 0 only for −42 < y < 4; the normal step Φ(y) needs y up to 9
        y_step = spacing * min(1.0, beta / level)
        y = np.arange(-42.0, 9.0 + y_step, y_step)[None, :]
        return _Grid(
            tau, (y - tau) / beta, np.broadcast_to(y, (tau.size, y.size)), tau_step, y_step / beta, True
        )
    x_step = min(spacing / max(beta, level), 0.5)
    x = np.arange(-12.0, 12.0 + x_step, x_step)[None, :]
    return _Grid(tau, x, tau + beta * x, tau_step, x_step, False)


def _expectations(n: int, beta: float, spacing: float) -> Array:
    """All expectations at one spacing, in the order of the fields of `RandomEnergy`."""
    from scipy.integrate import cumulative_simpson
    from scipy.special import log_ndtr, ndtr

    grid = _grid(n, beta, spacing)
    w = np.exp(np.minimum(grid.y, 6.8))  # e^{−e^6.8} is 0 in float64, as is everything beyond
    survives = np.exp(-w)
    fails = -np.expm1(-w)
    normal = np.exp(-0.5 * grid.x**2) / math.sqrt(2 * math.pi)
    weight = normal * grid.x_step
    moments = []
    term = weight * survives
    for _ in range(4):
        term = term * w
        moments.append(term.sum(axis=1))
    # 1 − φ(τ) with a relative error near rounding, so that n(1 − φ) is right at n = 10^7. On the window the integrand
    # does not vanish at the right end: a step Φ(y) is subtracted, and its mean over x, Φ(τ/√(1 + β²)), is added
    step, closed = (
        (ndtr(grid.y[0]), ndtr(grid.tau[:, 0] / math.hypot(1.0, beta))) if grid.window else (0.0, 0.0)
    )
    failure = closed + (weight * (fails - step)).sum(axis=1)
    log_phi = np.log1p(-np.minimum(failure, 1 - 2.0**-53))
    density = n * np.exp((n - 1) * log_phi) * grid.tau_step
    ones = float(density @ moments[0])
    log_partition = -np.euler_gamma - density @ (moments[0] * grid.tau[:, 0]) / ones
    pairs = n * (n - 1) * np.exp((n - 2) * log_phi) * grid.tau_step
    second, third = density @ moments[1], density @ moments[2] / 2
    second_squared = (density @ moments[3] + pairs @ moments[1] ** 2) / 6
    # G(τ, x)^{n−1}: all other logits lie below x and survive. 1 − G = P(y > x) + ∫_{−∞}^x dN(y)(1 − e^{−w})
    running = cumulative_simpson(normal * fails, dx=grid.x_step, axis=1, initial=0.0)
    others = np.exp((n - 1) * np.log1p(-np.clip(ndtr(-grid.x) + running, 0.0, 1 - 2.0**-53)))
    largest = n * grid.tau_step * (weight * w * survives * others).sum()
    entropy = log_partition - beta * beta * (pairs @ moments[0] ** 2)
    norm = second - 2 * third + second_squared
    # the mean of the largest of n standard normal numbers
    x = np.linspace(-12.0, 12.0, 2401)
    highest = np.exp((n - 1) * log_ndtr(x) - 0.5 * x * x)
    return np.array([log_partition, entropy, second, largest, norm, beta * (x @ highest / highest.sum())])


# Numbers of nodes that are tried in turn, and the relative difference at which two successive rules agree.
_ORDERS = (6, 9, 13, 19, 28, 42, 60)
_AGREEMENT = 2e-6
# A node with a smaller weight cannot change a result by the tolerance: no field exceeds about n times its mean, except
# at d = 1 at nodes of small weight and extreme β.
_NEGLIGIBLE = 1e-16


@lru_cache(maxsize=1024)
def attention_under_random_inputs(keys: int, head_dim: int, scale: float) -> RandomEnergy:
    """Expectations over a row of softmax(scale · q·k) for q and k ~ N(0, I), exactly.

    keys : number of keys a query sees, >= 2.
    head_dim : d, number of components of q and k, >= 1.
    scale : factor on q·k, for instance 1/√d, or 1 for unscaled attention; times σ_q σ_k if these are not 1. Its
    sign has no effect.

    E f = E[f(β)], β = |scale| χ_d, with f from `random_energy` (Derrida 1981). The average is taken by Gauss rules of
    rising order, until two agree to 2e-6. The `beta` of the result is the root mean square, |scale| √d.

    Raises ValueError for numbers outside these domains and if the average does not converge.
    """
    keys, head_dim = whole("keys", keys, 2), whole("head_dim", head_dim, 1)
    unit, change, previous = abs(real("scale", scale)), math.inf, None
    for order in _ORDERS:
        nodes, weights = chi_rule(head_dim, order)
        kept = weights > _NEGLIGIBLE
        rows = [astuple(random_energy(keys, unit * float(norm)))[2:] for norm in nodes[kept]]
        total = weights[kept] @ np.array(rows)
        if previous is not None:
            change = float(np.max(np.abs(total - previous) / np.maximum(np.abs(total), 1e-300)))
            if change <= _AGREEMENT:
                return RandomEnergy(keys, unit * math.sqrt(head_dim), *total.tolist())
        previous = total
    raise ValueError(
        f"the average over |q| did not converge at head_dim={head_dim}: last change {change:.1e} > {_AGREEMENT:g}"
    )


@lru_cache(maxsize=256)
def chi_rule(head_dim: int, order: int) -> tuple[Array, Array]:
    """Nodes and weights (sum 1) of the Gauss rule for the χ_d law, d = `head_dim`.

    The density r^{d−1} e^{−r²/2} is taken at 400 Legendre nodes. Lanczos' process on them (Gragg and
    Harrod 1984, here with full reorthogonalisation) gives the Jacobi matrix. Its eigenvalues and eigenvectors
    give the rule (Golub and Welsch 1969). Weights are normalised throughout, as Γ(d/2) overflows at d = 344.
    """
    from scipy.special import roots_legendre

    centre = math.sqrt(max(head_dim - 1, 0))  # the mode; the standard deviation is below 1 at every d
    low, high = max(0.0, centre - 9.0), centre + 9.0
    legendre, measure = roots_legendre(400)
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * legendre
    exponent = (head_dim - 1) * np.log(nodes) - 0.5 * nodes**2
    mass = measure * np.exp(exponent - exponent.max())
    basis = np.empty((order, nodes.size))
    basis[0] = np.sqrt(mass / mass.sum())
    diagonal, beside = np.empty(order), np.empty(order)
    for k in range(order):
        ahead = nodes * basis[k]
        diagonal[k] = basis[k] @ ahead
        for _ in range(2):  # one pass is not orthogonal to within rounding, two passes are
            ahead -= basis[: k + 1].T @ (basis[: k + 1] @ ahead)
        beside[k] = np.linalg.norm(ahead)
        if k + 1 < order:
            basis[k + 1] = ahead / beside[k]
    jacobi = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    roots, vectors = np.linalg.eigh(jacobi)
    return np.maximum(roots, 0.0), vectors[0] ** 2
