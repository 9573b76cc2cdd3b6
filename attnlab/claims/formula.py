"""The formula softmax(QKᵀ/√d_k)V: what it computes, and which indices its sums have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import allowed, distance, error_in_budgets, softmax, weights_of
from attnlab.theory import output_response, softmax_weights, temperature_response, unit_roundoff

THEME = Theme("The formula")
VASWANI = "Vaswani et al. 2017, §3.2.1"
_SCALE = 16**-0.5


def _drawn(lab: Laboratory, queries: int = 12, keys: int = 12, heads: int = 2) -> tuple[Array, Array, Array]:
    """Standard normal (1, heads, length, 16)."""
    return (
        lab.normal(1, heads, queries, 16, stream=1),
        lab.normal(1, heads, keys, 16, stream=2),
        lab.normal(1, heads, keys, 16, stream=3),
    )


@THEME.claim(
    "scaled-dot-product",
    "all",
    kind="identity",
    says="Attention is softmax(QKᵀ/√d_k)V.",
    truth="So it is. Every backend agrees with the formula evaluated in float64, to within the error that its own "
    "roundings predict.",
    reference=VASWANI,
)
def scaled_dot_product(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for dtype in ("float32", "float64"):
        q, k, v = (array.astype(dtype) for array in _drawn(lab, 48, 64))
        for causal in (False, True):
            worst = lab.worst(lambda attend: error_in_budgets(attend, q, k, v, causal=causal))  # noqa: B023 - called at once
            where = f"{dtype}{', causal' if causal else ''}; {worst.where}"
            checks.append(claimed("error over the largest allowed", worst.figure, "≤", 1, where=where))
    return checks


@THEME.claim(
    "weights-sum-to-one",
    "S0:28; S2:25; S4:181",
    kind="identity",
    says="The softmax turns a row of scores into weights that add up to 1.",
    truth="They do, up to rounding: with every value equal to 1 each output is 1 to within √n·u of the precision "
    "inside plus u of the output format, u being the unit roundoff.",
    reference=VASWANI,
)
def weights_sum_to_one(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for keys in (16, 512):
        q, k = (lab.normal(1, 2, n, 16, stream=n).astype(np.float32) for n in (8, keys))
        ones = np.ones((1, 2, keys, 16), np.float32)
        bound = (np.sqrt(keys) + 1) * unit_roundoff("float32")
        worst = lab.worst(
            lambda attend: np.abs(attend(q, k, ones, causal=False, scale=_SCALE) - 1.0).max()  # noqa: B023 - called at once
        )
        checks.append(
            claimed("largest |Σp − 1|", worst.figure, "≤", bound, where=f"n = {keys}, float32; {worst.where}")
        )
    return checks


@THEME.claim(
    "values-scaled",
    "S0:30",
    kind="identity",
    says="The values are scaled by the attention weights, and that is the output.",
    truth="Each output is a weighted sum over all keys, Σ_j p_j v_j. It lies between the least and "
    "the greatest value, and equals one scaled value only where there is a single key.",
    condition="term by term: the part of the output that one value contributes",
    reference=VASWANI,
)
def values_scaled(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab)
    alone = np.zeros_like(v)
    alone[:, :, 5] = v[:, :, 5]
    p = softmax(_SCALE * q @ k.swapaxes(-1, -2))
    tolerance = allowed(q, k, v, times=2)
    low, high = v.min(axis=2, keepdims=True), v.max(axis=2, keepdims=True)

    one = lab.worst(
        lambda attend: distance(
            attend(q, k, alone, causal=False, scale=_SCALE),
            weights_of(attend, q, k, scale=_SCALE)[..., 5:6] * v[:, :, 5:6],
        )
    )
    whole = lab.worst(lambda attend: _from_nearest_scaled(attend(q, k, v, causal=False, scale=_SCALE), v))
    outside = lab.worst(
        lambda attend: np.maximum(low - (o := attend(q, k, v, causal=False, scale=_SCALE)), o - high).max()
    )
    total = lab.worst(lambda attend: distance(attend(q, k, v, causal=False, scale=_SCALE), p @ v))
    return [
        claimed("distance from p_j v_j with v_j alone", one.figure, "≤", tolerance, where=one.where),
        beyond(
            "distance of an output from the nearest scaled value",
            whole.figure,
            "≤",
            tolerance,
            where=f"n = 12; {whole.where}",
        ),
        right("distance from Σ_j p_j v_j", total.figure, "≤", tolerance, where=total.where),
        right("furthest beyond the values' range", outside.figure, "≤", 0, slack=1e-14, where=outside.where),
    ]


def _from_nearest_scaled(output: Array, v: Array) -> float:
    """Largest over rows of min over j and c of ‖o − c v_j‖/‖o‖: 0 where every output is some value, scaled."""
    unit = v / np.linalg.norm(v, axis=-1, keepdims=True)
    along = output @ unit.swapaxes(-1, -2)
    rest = np.linalg.norm(output[..., None, :] - along[..., None] * unit[:, :, None], axis=-1)
    return float((rest.min(axis=-1) / np.linalg.norm(output, axis=-1)).max())


@THEME.claim(
    "score-of-own-key",
    "S4:130; S4:154; S4:250",
    kind="identity",
    says="The score of position i is s_i = q_i·k_i: one number a token.",
    truth="There is a score for every pair, s_ij = q_i·k_j: n² of them.",
    reference=VASWANI,
)
def score_of_own_key(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab)
    own = np.broadcast_to(_SCALE * (q * k).sum(axis=-1)[:, :, None], (1, 2, 12, 12))
    pairs = _SCALE * q @ k.swapaxes(-1, -2)
    tolerance = allowed(q, k, v)
    found = []
    for role, formula, scores in ((claimed, "q_j·k_j", own), (right, "q_i·k_j", pairs)):
        worst = lab.worst(
            lambda attend: distance(attend(q, k, v, causal=False, scale=_SCALE), softmax(scores) @ v)  # noqa: B023 - called at once
        )
        found.append(
            role(f"distance from weights of {formula}", worst.figure, "≤", tolerance, where=worst.where)
        )
    return found


@THEME.claim(
    "denominator-own-key",
    "S4:178; S4:280",
    kind="identity",
    says="The softmax divides by Σ_j exp(q_j·k_j).",
    truth="It divides by Σ_j exp(q_i·k_j), with the query fixed. As written in the text, numerator "
    "and denominator depend on no query, and all queries would get one and the same output.",
    reference=VASWANI,
)
def denominator_own_key(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab)
    scores = _SCALE * q @ k.swapaxes(-1, -2)
    sums = np.exp(scores).sum(axis=-1)

    def spread(attend: object) -> float:
        o = np.asarray(attend(q, k, v, causal=False, scale=_SCALE))  # type: ignore[operator]  # an Attend
        return float(np.ptp(o, axis=2).max() / np.abs(o).max())

    same = lab.worst(spread)
    total = lab.worst(
        lambda attend: np.abs(
            np.exp(scores) / weights_of(attend, q, k, scale=_SCALE) / sums[..., None] - 1
        ).max()
    )
    return [
        claimed(
            "largest difference of two queries' outputs, relative",
            same.figure,
            "≤",
            allowed(q, k, v),
            where=same.where,
        ),
        right(
            "exp(s_ij)/p_ij against Σ_j exp(q_i·k_j), relative",
            total.figure,
            "≤",
            0,
            slack=1e-11,
            where=total.where,
        ),
    ]


@THEME.claim(
    "output-expectation",
    "S4:287-314",
    kind="identity",
    says="What attention puts out is an expectation: of the values, under the weights.",
    truth="Exactly so, and its response to a score is a covariance: ∂o/∂s_j = p_j(v_j − o), dO/dβ ="
    " Cov_p(v, s).",
    reference="Kubo 1966 for fluctuation and dissipation",
)
def output_expectation(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab)
    s = _SCALE * q @ k.swapaxes(-1, -2)
    p = softmax_weights(s)
    # central differences: their own error is of order step², the rounding u/step
    step = 1e-4
    pushed = step * q[:, :, :1] / (_SCALE * (q[:, :, :1] ** 2).sum(axis=-1, keepdims=True))
    towards = np.zeros_like(k)
    towards[:, :, 3] = pushed[:, :, 0]
    of_score, of_beta = (
        output_response(p, v[:, :, None])[:, :, 0, 3],
        temperature_response(p, v[:, :, None], s),
    )

    mean = lab.worst(lambda attend: distance(attend(q, k, v, causal=False, scale=_SCALE), p @ v))
    response = lab.worst(
        lambda attend: distance(
            (
                attend(q, k + towards, v, causal=False, scale=_SCALE)
                - attend(q, k - towards, v, causal=False, scale=_SCALE)
            )[:, :, 0]
            / (2 * step),
            of_score,
        )
    )
    heating = lab.worst(
        lambda attend: distance(
            (
                attend(q, k, v, causal=False, scale=_SCALE * (1 + step))
                - attend(q, k, v, causal=False, scale=_SCALE * (1 - step))
            )
            / (2 * step),
            of_beta,
        )
    )
    return [
        claimed("distance from E_p[v]", mean.figure, "≤", allowed(q, k, v), where=mean.where),
        claimed("∂o/∂s_j against p_j(v_j − o)", response.figure, "≤", 0, slack=1e-6, where=response.where),
        claimed("dO/dβ against Cov_p(v, s)", heating.figure, "≤", 0, slack=1e-6, where=heating.where),
    ]


@THEME.claim(
    "next-token",
    "S4:46; S4:292; S4:353",
    kind="shape",
    says="Attention puts out the next token, one vector x_{n+1}.",
    truth="It puts out one vector for every query position; a next token is predicted from the last"
    " of them, after many layers and an output projection.",
    reference="Vaswani et al. 2017, §3.4",
)
def next_token(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab)
    count = lab.worst(lambda attend: _distinct_rows(attend(q, k, v, causal=False, scale=_SCALE)))
    least = -lab.worst(lambda attend: -_distinct_rows(attend(q, k, v, causal=False, scale=_SCALE))).figure
    return [
        claimed("different vectors put out", count.figure, "=", 1, where=f"n = 12; {count.where}"),
        right("different vectors put out, fewest", least, "=", 12, where=f"n = 12; {count.where}"),
    ]


def _distinct_rows(output: Array) -> float:
    return float(len(np.unique(np.asarray(output)[0, 0], axis=0)))
