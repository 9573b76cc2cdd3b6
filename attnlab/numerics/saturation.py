"""Where does the softmax freeze, in the backends themselves? Against d_k, with and without the scale 1/√d_k.

Given the query, the logits of standard normal inputs are independent normal numbers, and the row is Derrida's
random energy model: it freezes, so that a few keys hold all the weight however many there are, when the logits'
standard deviation passes √(2 ln n). Unscaled that is d_k > 2 ln n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab.numerics.clusters import mean_over_clusters
from attnlab.numerics.contestants import Contestant, Facts, agreement, contestants, generator, rows_or_failure
from attnlab.numerics.drawing import (
    BLUE,
    GREY,
    ORANGE,
    backend_styles,
    entitle,
    legend,
    nested_sizes,
    new_figure,
    powers_of_two,
    smooth,
)
from attnlab.numerics.finding import Finding, Row
from attnlab.numerics.observables import Array, Observables, observe
from attnlab.theory import attention_under_random_inputs, freezing_head_dim

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Saturation of the softmax"
#: keys a row, head dimensions, heads and queries a head; a slow backend gets the second line
_KEYS, _HEAD_DIMS, _HEADS, _QUERIES = 1024, (2, 4, 8, 16, 32, 64, 128, 256), 32, 16
_SLOW_KEYS, _SLOW_HEAD_DIMS, _SLOW_HEADS, _SLOW_QUERIES = 64, (4, 64), 32, 4
#: single precision resolves weights to about 1e-6 and entropies to 1e-5 at these sizes
DTYPE, _SLACK = "float32", 2e-5

QUANTITIES: dict[str, Callable[[Observables], Array]] = {
    "entropy": lambda row: row.entropy,
    "largest_weight": lambda row: row.largest_weight,
    "participation": lambda row: row.participation,
}


def run(backends: Sequence[str], *, seed: int = 0, folders: Sequence[Path | str] = ()) -> Finding:
    """Mean entropy (nats), largest weight and participation Σp² of a row, through each of `backends`.

    Prediction: `attention_under_random_inputs`, exact at any n. Standard error: from the spread of the means of
    independent heads, as the rows of one head share its keys. Raises ValueError for an unknown backend or a bad
    seed.
    """
    facts: Facts = {"seed": seed, "dtype": DTYPE}
    rows: list[Row] = []
    for one in contestants(backends, facts, dtype=DTYPE, folders=folders):
        rows += rows_or_failure(one.name, lambda one=one: _through(one, seed))  # type: ignore[misc]
    return Finding(
        experiment="saturation",
        title=TITLE,
        question="Does one key take all the weight as d_k grows, and does 1/√d_k prevent it?",
        conclusion=_conclusion(rows),
        rows=tuple(rows),
        facts=facts,
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
        f"Over {keys} keys the unscaled softmax freezes around d_k = 2 ln n = {freezing_head_dim(keys):.1f}: its "
        f"largest weight averages {at('unscaled', low):.3f} at d_k = {low:g} and {at('unscaled', high):.3f} at "
        f"{high:g}, against {at('scaled', low):.3f} and {at('scaled', high):.3f} with 1/√d_k; "
        f"{agreement(rows, 'the exact curve')}."
    )


def figure(finding: Finding) -> Figure:
    """Entropy, largest weight and effective number of keys against d_k: exact curves, measured points."""
    figure, panels = new_figure(3, 1, width=13.0, height=4.4)
    most = max((int(row.where["keys"]) for row in finding.rows if "keys" in row.where), default=2)
    rows = [row for row in finding.rows if row.where.get("keys") == most]
    freezing = freezing_head_dim(most)
    shown: tuple[tuple[str, str, str, Callable[[float], float], float], ...] = (
        ("entropy", "Entropy of a row", "entropy / ln n", lambda h: h / math.log(most), 0.6),
        ("largest_weight", "Largest weight", "mean largest weight", lambda p: p, 0.95),
        ("participation", "Keys that take part", "1 / mean Σp²", lambda s: 1 / s, 0.6),
    )
    for panel, (quantity, title, label, form, height) in zip(panels, shown, strict=True):
        _draw(panel, [row for row in rows if row.quantity == quantity], form)
        entitle(panel, title, "head dimension d_k", label)
        panel.axvline(freezing, color=GREY, linestyle="--", linewidth=1.2)
        place = panel.get_xaxis_transform()  # x in data, y as a fraction of the panel
        panel.text(
            freezing * 1.1, height, f"d_k = 2 ln n = {freezing:.1f}", fontsize=9, color=GREY, transform=place
        )
    panels[2].set_yscale("log")
    legend(panels[0], fontsize=8, title=f"through, n = {most}", title_fontsize=8)
    return figure


def _draw(panel: Axes, rows: Sequence[Row], form: Callable[[float], float]) -> None:
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    sizes = nested_sizes(len(styles))
    for scaling, colour in (("unscaled", ORANGE), ("scaled", BLUE)):
        for index, (name, style) in enumerate(styles.items()):
            mine = [row for row in rows if (row.where["backend"], row.where["scaling"]) == (name, scaling)]
            x = [float(row.where["head_dim"]) for row in mine]
            if index == 0:
                exact = [form(row.predicted) for row in mine]
                panel.plot(*smooth(x, exact), color=colour, linewidth=1.8, zorder=2)
                up = 6 if scaling == "unscaled" else 9
                panel.annotate(
                    scaling,
                    (x[-3], exact[-3]),
                    (4, up),
                    textcoords="offset points",
                    color=colour,
                    fontsize=10,
                )
            panel.plot(
                x,
                [form(row.measured) for row in mine],
                style["marker"],
                color=colour,
                markerfacecolor="none",
                markersize=sizes[index],
                markeredgewidth=0.8,
                label=name if scaling == "scaled" else None,
            )
    powers_of_two(panel, sorted({float(row.where["head_dim"]) for row in rows}) or [1.0])
