"""Does the variance of the logits grow with d_k, and does dividing by √d_k stop it, in the backends themselves?

Vaswani et al. 2017 (section 3.2.1, footnote 4) argue with Var(q·k) = d_k. Here every logit is read out of a
backend's weights (`read_logits`) and its variance held against the exact one, with the standard
error that many rows sharing few queries and keys really have. The rest of the law (other families of components,
kurtosis, the whole distribution) needs no backend and is sampled in `attnlab.numerics.variance_sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnlab.numerics.estimates import log_log_slope
from attnlab.numerics.finding import Row
from attnlab.numerics.responses import Array, read_logits
from attnlab.numerics.survey import OpenBackend, Survey, agreement, generator
from attnlab.numerics.variance_sampling import DOT_PRODUCTS, sampled_rows
from attnlab.theory import dot_product_moments

HEAD_DIMS = tuple(2**power for power in range(11))
#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
#: independent heads, and queries and keys in each: 131,072 logits a point; a slow backend gets the second
_SIZES, _SLOW_SIZES = (32, 64, 64), (8, 16, 16)


def measure(survey: Survey) -> None:
    """Var(logit) against d_k, for three scalings, read through each backend in float64; and the law of q·k.

    Prediction: scale²·d_k for standard normal q and k, and `attnlab.theory` for the rest. Measured: the mean of s² over
    all logits, its mean being 0 by symmetry. Standard error: `DotProductMoments.variance_standard_error`.
    """
    survey.facts["dot products sampled"] = DOT_PRODUCTS
    survey.rows += sampled_rows(survey.seed, SCALINGS)
    survey.each(_through)


def _through(one: OpenBackend, seed: int) -> list[Row]:
    """Variances at every d_k and scaling through one backend, and the slopes on d_k."""
    rows = []
    for scaling, power in SCALINGS.items():
        variances = [_variance(one, seed, scaling, d, float(d) ** power) for d in HEAD_DIMS]
        slope, error = log_log_slope(
            HEAD_DIMS, [row.measured for row in variances], [row.standard_error for row in variances]
        )
        where = {"backend": one.name, "scaling": scaling}
        rows += variances
        rows.append(
            Row.compare(
                "slope of ln variance on ln d_k",
                where,
                predicted=1 + 2 * power,
                measured=slope,
                standard_error=error,
            )
        )
    return rows


def _variance(one: OpenBackend, seed: int, scaling: str, head_dim: int, scale: float) -> Row:
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    # the same draw for every backend and both scalings: what differs between points is what was changed
    rng = generator(seed, head_dim)
    q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
    logits: Array = read_logits(one.attend, q, k, scale=scale)
    moments = dot_product_moments(head_dim, scale=scale)
    return Row.compare(
        "variance",
        {"backend": one.name, "scaling": scaling, "head_dim": head_dim},
        predicted=moments.variance,
        measured=float(np.mean((logits - moments.mean) ** 2)),
        standard_error=moments.variance_standard_error(n_q, n_k) / np.sqrt(heads),
    )


def conclusion(rows: Sequence[Row]) -> str:
    """The powers of d_k with which the variances grow."""
    slopes = [row for row in rows if row.quantity.startswith("slope")]

    def power(scaling: str) -> str:
        found = [row for row in slopes if row.where["scaling"] == scaling]
        best = min(found, key=lambda row: row.standard_error)
        return f"{best.measured:.3f} ± {2 * best.standard_error:.3f}".replace("-", "−")

    through = len({str(row.where["backend"]) for row in slopes if "backend" in row.where})

    return (
        f"The variance of the logits grows as d_k to the power {power('unscaled')}; with 1/√d_k the power is "
        f"{power('scaled')}, with 1/d_k {power('μP')} (predicted 1, 0, −1; ± two standard errors), and the "
        f"same is read through {through} backends. {agreement(rows, 'the prediction')}."
    )
