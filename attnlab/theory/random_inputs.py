"""Requirement: what a row of attention looks like when queries and keys are independent normal vectors.

Given the query a row's logits are exactly iid N(0, β²), β = ‖q‖ σ_k · scale, so that every expectation is
that of `random_energy` averaged over ‖q‖/σ_q ~ χ_d. The Gauss rule of the χ_d density itself is used: the
expectations are smooth in β >= 0, but not in β², where E p_max has a root at 0 (so Gauss–Laguerre fails).
"""

import math
from functools import lru_cache

import numpy as np

from .checks import Array, real, whole
from .random_energy import RandomEnergy, random_energy

# Nodes tried in turn; two successive rules must agree.
_ORDERS = (6, 9, 13, 19, 28, 42, 60)
_TOLERANCE = 5e-7
# A node lighter than this cannot move a result by the tolerance: every field is bounded by about 10^4
# times its mean, except at d = 1 with light nodes at extreme β.
_NEGLIGIBLE = 1e-16
FIELDS = ("log_partition", "entropy", "participation", "largest_weight", "jacobian_norm_squared")


@lru_cache(maxsize=1024)
def attention_under_random_inputs(keys: int, head_dim: int, scale: float) -> RandomEnergy:
    """Expectations over a row of softmax(scale · q·k) for q and k ~ N(0, I), exactly.

    keys : number of keys a query sees, >= 2.
    head_dim : d, number of components of q and k, >= 1.
    scale : factor on q·k, for instance 1/√d, or 1 for unscaled attention; times σ_q σ_k where these are not 1. Its
    sign has no effect.

    E f = E[f(β)], β = |scale| χ_d, with f from `random_energy` (Derrida 1981) and the average a Gauss rule whose order
    rises until two agree to 5e-7. The `beta` of the result is the root mean square, |scale| √d.

    Raises ValueError for numbers outside these domains and where the average does not converge.
    """
    keys, head_dim = whole("keys", keys, 2), whole("head_dim", head_dim, 1)
    unit, change, previous = abs(real("scale", scale)), math.inf, None
    for order in _ORDERS:
        nodes, weights = chi_rule(head_dim, order)
        kept = weights > _NEGLIGIBLE
        rows = (random_energy(keys, unit * float(norm)) for norm in nodes[kept])
        total = weights[kept] @ np.array([[getattr(row, field) for field in FIELDS] for row in rows])
        if previous is not None:
            change = float(np.max(np.abs(total - previous) / np.maximum(np.abs(total), 1e-300)))
            if change <= _TOLERANCE:
                return RandomEnergy(keys, unit * math.sqrt(head_dim), *(float(one) for one in total))
        previous = total
    raise ValueError(
        f"the average over |q| did not converge at head_dim={head_dim}: last change {change:.1e} > {_TOLERANCE:g}"
    )


@lru_cache(maxsize=256)
def chi_rule(head_dim: int, order: int) -> tuple[Array, Array]:
    """Nodes and weights (sum 1) of the Gauss rule for the χ_d law, d = `head_dim`.

    The density r^{d−1} e^{−r²/2} is laid on 400 Legendre nodes; Lanczos' process on them (Gragg and
    Harrod 1984, here with full reorthogonalisation) gives the Jacobi matrix, and its eigenvectors the
    rule (Golub and Welsch 1969). Weights are normalised throughout, as Γ(d/2) overflows at d = 344.
    """
    centre = math.sqrt(max(head_dim - 1, 0))  # the mode; the law's deviation is below 1 at every d
    low, high = max(0.0, centre - 9.0), centre + 9.0
    legendre, measure = np.polynomial.legendre.leggauss(400)
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * legendre
    exponent = (head_dim - 1) * np.log(nodes) - 0.5 * nodes**2
    mass = measure * np.exp(exponent - exponent.max())
    basis = np.empty((order, nodes.size))
    basis[0] = np.sqrt(mass / mass.sum())
    diagonal, beside = np.empty(order), np.empty(order)
    for k in range(order):
        ahead = nodes * basis[k]
        diagonal[k] = basis[k] @ ahead
        for _ in range(2):  # once is not orthogonal to rounding, twice is
            ahead -= basis[: k + 1].T @ (basis[: k + 1] @ ahead)
        beside[k] = np.linalg.norm(ahead)
        if k + 1 < order:
            basis[k + 1] = ahead / beside[k]
    jacobi = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    roots, vectors = np.linalg.eigh(jacobi)
    return np.maximum(roots, 0.0), vectors[0] ** 2
