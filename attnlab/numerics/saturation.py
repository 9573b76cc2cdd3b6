"""Where does the softmax freeze, in the backends themselves? Against d_k, with and without the scale 1/√d_k.

Given the query, the logits of standard normal inputs are independent normal numbers, and the row is Derrida's
random energy model: it freezes, so that a few keys hold all the weight however many there are, when the logits'
standard deviation passes √(2 ln n). Unscaled that is d_k > 2 ln n.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab.numerics.clusters import mean_over_clusters
from attnlab.numerics.contestants import Contestant, agreement, generator
from attnlab.numerics.finding import Finding, Row
from attnlab.numerics.observables import observe
from attnlab.numerics.saturation_map import QUANTITIES, map_rows, temperature_rows
from attnlab.numerics.survey import Survey
from attnlab.theory import attention_under_random_inputs, freezing_head_dim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Saturation of the softmax"
#: keys a row, head dimensions, heads and queries a head; a slow backend gets the second line. Below d_k = 4 a few
#: long queries carry the mean participation, and no error of it can be told from the rows that were seen
_KEYS, _HEAD_DIMS, _HEADS, _QUERIES = 1024, (4, 8, 16, 32, 64, 128, 256), 32, 32
_SLOW_KEYS, _SLOW_HEAD_DIMS, _SLOW_HEADS, _SLOW_QUERIES = 64, (4, 64), 32, 4
#: single precision resolves weights to about 1e-6 and entropies to 1e-5 at these sizes
DTYPE, _SLACK = "float32", 2e-5


def run(backends: Sequence[str], *, seed: int = 0, folders: Sequence[Path | str] = ()) -> Finding:
    """Mean entropy (nats), largest weight and participation Σp² of a row, through each of `backends`.

    Prediction: `attention_under_random_inputs`, exact at any n. Standard error: from the spread of the means of
    independent heads, as the rows of one head share its keys. Raises ValueError for an unknown backend or a bad
    seed.
    """
    survey = Survey(backends, seed=seed, folders=folders, dtype=DTYPE)
    survey.ask_each(_through)
    if chosen := survey.ask_one(lambda one, seed: [*map_rows(one, seed), *temperature_rows(one, seed)]):
        survey.facts["phase diagram measured through"] = chosen.name
    return survey.finding(
        "saturation",
        TITLE,
        question="Does one key take all the weight as d_k grows, and does 1/√d_k prevent it?",
        conclusion=_conclusion,
    )


def _through(one: Contestant, seed: int) -> list[Row]:
    keys, dims = (_SLOW_KEYS, _SLOW_HEAD_DIMS) if one.slow else (_KEYS, _HEAD_DIMS)
    heads, queries = (_SLOW_HEADS, _SLOW_QUERIES) if one.slow else (_HEADS, _QUERIES)
    rows = []
    for head_dim in dims:
        rng = generator(seed, head_dim)
        q, k = (rng.standard_normal((1, heads, n, head_dim), dtype=np.float32) for n in (queries, keys))
        for scaling, scale in (("unscaled", 1.0), ("scaled", head_dim**-0.5)):
            seen = observe(one.attend, q, k, scale=scale)
            where: dict[str, str | float] = {
                "backend": one.name,
                "scaling": scaling,
                "keys": keys,
                "head_dim": head_dim,
            }
            expected = attention_under_random_inputs(keys, head_dim, scale)
            for quantity, of in QUANTITIES.items():
                mean, error = mean_over_clusters(of(seen).reshape(heads, queries))
                predicted = getattr(expected, quantity)
                rows.append(
                    Row.compare(
                        quantity,
                        where,
                        predicted=predicted,
                        measured=mean,
                        standard_error=error,
                        slack=_SLACK,
                    )
                )
    return rows


def _conclusion(rows: Sequence[Row]) -> str:
    weights = [row for row in rows if row.quantity == "largest_weight"]
    if not weights:
        return "No backend could be measured."
    keys = max(int(row.where["keys"]) for row in weights)
    weights = [row for row in weights if row.where["keys"] == keys]
    ends = [float(row.where["head_dim"]) for row in weights]

    def at(scaling: str, head_dim: float) -> float:
        wanted = (scaling, head_dim)
        found = [row.measured for row in weights if (row.where["scaling"], row.where["head_dim"]) == wanted]
        return float(np.mean(found))

    low, high = min(ends), max(ends)
    return (
        f"Over {keys} keys theory has the unscaled softmax freeze around d_k = 2 ln n = {freezing_head_dim(keys):.1f}. "
        f"Its largest weight averages {at('unscaled', low):.3f} at d_k = {low:g} and {at('unscaled', high):.3f} at "
        f"{high:g}, against {at('scaled', low):.3f} and {at('scaled', high):.3f} with 1/√d_k. "
        f"{agreement(rows, 'the exact curves')}."
    )


def figure(finding: Finding) -> Figure:
    """Against d_k through every backend above; the phase diagram and the freezing temperature below."""
    from attnlab.numerics.saturation_figure import draw

    return draw(finding)
