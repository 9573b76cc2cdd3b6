"""Which sizes must agree, and which need not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import error_in_budgets
from attnlab.numerics.black_box import Attend

THEME = Theme("Shapes")


def _drawn(lab: Laboratory, queries: int, keys: int, dim: int, value_dim: int) -> tuple[Array, Array, Array]:
    return (
        lab.normal(1, 2, queries, dim, stream=1),
        lab.normal(1, 2, keys, dim, stream=2),
        lab.normal(1, 2, keys, value_dim, stream=3),
    )


@THEME.claim(
    "self-and-cross",
    "S3:27-28",
    kind="shape",
    says="A sequence may attend to itself, or to another one.",
    truth="Both are the same computation; in cross-attention n_q and n_k are independent of each other.",
    reference="Vaswani et al. 2017, §3.2.3",
)
def self_and_cross(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for queries, keys in ((12, 12), (5, 12), (12, 5), (1, 9)):
        q, k, v = _drawn(lab, queries, keys, 16, 16)
        worst = lab.worst(lambda attend: error_in_budgets(attend, q, k, v))  # noqa: B023 - called at once
        where = f"n_q = {queries}, n_k = {keys}; {worst.where}"
        checks.append(claimed("error over the largest allowed", worst.figure, "≤", 1, where=where))
    return checks


@THEME.claim(
    "same-row-count",
    "S3:93-97",
    kind="shape",
    says="Q, K and V all have n rows.",
    truth="K and V share a length, n_k; Q has a length of its own, n_q.",
    condition="self-attention",
    reference="Vaswani et al. 2017, §3.2.3",
)
def same_row_count(lab: Laboratory) -> Sequence[Check]:
    apart = lab.part("lengths", (3, 7))
    checks = []
    for role, (queries, keys) in ((claimed, (6, 6)), (beyond, apart)):
        q, k, v = _drawn(lab, queries, keys, 16, 16)
        worst = lab.worst(lambda attend: error_in_budgets(attend, q, k, v))  # noqa: B023 - called at once
        checks += [
            control("error over the largest allowed", worst.figure, "≤", 1, where=worst.where),
            role(
                "|n_q − n_k| of a question that is answered right",
                abs(q.shape[2] - k.shape[2]),
                "=",
                0,
                where=f"n_q = {queries}, n_k = {keys}",
            ),
        ]
    q, k, v = _drawn(lab, 6, 6, 16, 16)
    accepted = _accepted(lab, lambda attend: attend(q, k, v[:, :, :4], causal=False, scale=0.25))
    return [*checks, right("backends that take n_k ≠ n_v", accepted, "=", 0)]


@THEME.claim(
    "one-query-key-dim",
    "S4:145-148",
    kind="shape",
    says="Queries and keys must have the same dimension, for their dot product to exist.",
    truth="They must, and a mismatch is refused with a message that says so.",
    reference="Vaswani et al. 2017, §3.2.1",
)
def one_query_key_dim(lab: Laboratory) -> Sequence[Check]:
    q, k, v = _drawn(lab, 6, 6, 16, 16)
    fitting = _accepted(lab, lambda attend: attend(q, k, v, causal=False, scale=0.25))
    accepted = _accepted(lab, lambda attend: attend(q, k[..., :12], v, causal=False, scale=0.25))
    unnamed = _accepted(lab, lambda attend: attend(q, k[..., :12], v, causal=False, scale=0.25), "head_dim")
    asked = len(lab.backends())
    return [
        control("backends that take d_q = d_k = 16", fitting, "=", asked),
        claimed("backends that take d_q = 16, d_k = 12", accepted, "=", 0, where=f"{asked} backends"),
        claimed("refusals that do not name the dimension", unnamed, "=", 0, where=f"{asked} backends"),
    ]


def _accepted(lab: Laboratory, ask: Callable[[Attend], Array], word: str = "") -> int:
    """How many backends answer, or refuse without `word`."""
    count = 0
    for _, attend in lab.backends():
        try:
            ask(attend)
            count += 1
        except ValueError as refusal:
            count += word not in str(refusal)
    return count


@THEME.claim(
    "value-dimension",
    "S4:163",
    kind="shape",
    says="The value vectors have the dimension d of the embedding.",
    truth="Any d_v will do; the output has the same d_v.",
    condition="no projection of the values",
    reference="Vaswani et al. 2017, §3.2.2",
)
def value_dimension(lab: Laboratory) -> Sequence[Check]:
    checks = []
    for role, value_dim in ((claimed, 16), *((beyond, size) for size in lab.part("value_dims", (1, 5, 32)))):
        q, k, v = _drawn(lab, 6, 6, 16, value_dim)
        worst = lab.worst(lambda attend: error_in_budgets(attend, q, k, v))  # noqa: B023 - called at once
        checks += [
            control("error over the largest allowed", worst.figure, "≤", 1, where=worst.where),
            role(
                "|d_v − d| of a question that is answered right",
                abs(v.shape[-1] - q.shape[-1]),
                "=",
                0,
                where=f"d = 16, d_v = {value_dim}",
            ),
        ]
    return checks


@THEME.claim(
    "two-maps-preserve",
    "S4:135",
    kind="identity",
    says="Two different projections for queries and keys preserve the information of the input.",
    truth="The scores see the input through W_QᵀW_K alone, whose rank is at most d_k; what it maps "
    "to 0 is lost to them.",
    condition="d_k ≥ d_model",
    reference="Bhojanapalli et al. 2020 (2002.07028)",
)
def two_maps_preserve(lab: Laboratory) -> Sequence[Check]:
    model_dim = 32
    checks = []
    for role, head_dim in ((claimed, 32), (beyond, lab.part("head_dim", 8))):
        w_q, w_k = (lab.normal(head_dim, model_dim, stream=head_dim + i) for i in (1, 2))
        rank = int(np.linalg.matrix_rank(w_q.T @ w_k))
        where = f"d_model = {model_dim}, d_k = {head_dim}"
        checks += [
            role("directions of the input that the scores see", rank, "=", model_dim, where=where),
            right(
                "directions of the input that the scores see",
                rank,
                "=",
                min(head_dim, model_dim),
                where=where,
            ),
        ]
    return checks
