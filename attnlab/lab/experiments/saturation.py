"""Do few keys take the weight as d_k grows, and does 1/√d_k prevent it?

Given its query, a row of standard normal inputs has n independent normal logits of standard deviation β: about √d_k
without the scale, about 1 with it. The softmax over them is the random energy model (Derrida 1981). It freezes at
β_c = √(2 ln n), which unscaled is d_k = 2 ln n: beyond it a few keys keep a share of the weight that no longer falls
with their number. That holds for normal logits; components of ±1, whose products have shorter tails, freeze only at
d_k = 3.05 ln n. Curves are exact integrals at this n, where the transition is gradual.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.lab.experiment import Chart, Experiment, Row, Subject, measured, of
from attnlab.lab.theory import attention_under_random_inputs, freezing_head_dim

#: keys a row, head dimensions, heads and queries a head; a slow backend gets the second line. Below d_k = 4 a few
#: long queries carry the mean participation, and no error of it can be told from the rows that were seen
KEYS = 1024
_SIZES = KEYS, (4, 8, 16, 32, 64, 128, 256), 16, 16
_SLOW_SIZES = 64, (4, 64), 32, 4
#: single precision resolves weights to about 1e-6 and entropies to 1e-5 at these sizes
_SLACK = 2e-5


def measure(one: Subject) -> Iterator[Row]:
    """Mean entropy (nats), largest weight and Σp² of a row, with the scale and without.

    Prediction: `attention_under_random_inputs`, exact at any n. Rows of one head share its keys, so heads are clusters.
    """
    keys, dims, heads, queries = _SLOW_SIZES if one.slow else _SIZES
    for head_dim in dims:
        for scaling, scale in (("unscaled", 1.0), ("scaled", head_dim**-0.5)):
            seen = one.observed((head_dim,), (heads, queries, keys), head_dim, scale)
            exact = attention_under_random_inputs(keys, head_dim, scale)
            where = {"scaling": scaling, "keys": keys, "head_dim": head_dim}
            yield from one.means(where, seen, exact, "entropy / ln n", "largest weight", "Σp²", slack=_SLACK)


EXPERIMENT = Experiment(
    title="Saturation of the softmax",
    measure=measure,
    dtypes=("float32",),
    sentence="Over 1024 keys the largest weight averages {few:.2f} at d_k = 4 and {many:.2f} at 256 without the "
    "scale, and {scaled:.3f} at 256 with 1/√d_k. Theory has the unscaled softmax freeze around d_k = 2 ln n = 13.9.",
    numbers={
        "few": measured("largest weight", scaling="unscaled", head_dim=4, keys=KEYS),
        "many": measured("largest weight", scaling="unscaled", head_dim=256, keys=KEYS),
        "scaled": measured("largest weight", scaling="scaled", head_dim=256, keys=KEYS),
    },
    lesson="For components of mean 0 and unit variance 1/√d_k keeps β at 1 at every d_k, below β_c (3.7 at n = "
    "1024). What decides is the standard deviation of a row's logits against √(2 ln n); d_k enters through it alone.",
    charts=(
        Chart(
            title="Unscaled, few keys take the weight",
            x="head_dim",
            x_label=f"head dimension d_k, at n = {KEYS}",
            y="mean largest weight",
            lines={name: of("largest weight", scaling=name, keys=KEYS) for name in ("unscaled", "scaled")},
            marks={"d_k = 2 ln n": freezing_head_dim(KEYS)},
            limits=(0.0, 1.05),
        ),
    ),
)
