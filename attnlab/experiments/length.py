"""What becomes of a sharp softmax as the sequence grows? It disperses, unless the logits grow with ln n.

At a fixed spread of the logits entropy approaches ln n and no weight stays large (Veličković et al. 2024); scaling
the logits by s ln n (Nakanishi 2025) crosses the freezing point instead. And whatever the queries and keys are, a gap Δ
between the largest and the smallest logit allows no weight above 1/(1 + (n − 1)e^{−Δ}).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.experiments.estimates import mean_over_clusters, mean_row
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.observables import observe
from attnlab.experiments.panels import boundary, measured, numbers
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import CYCLE, GREY, entitle, new_figure, note, powers_of_two, smooth
from attnlab.theory import (
    largest_possible_weight,
    random_energy,
    required_gap,
    scalable_softmax_beta,
    scalable_softmax_freezing_length,
    soft_cap_largest_weight,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTHS = tuple(2**power for power in range(4, 15))
#: a short and a long row
ENDS = (128, 16384)
SLOPE = 0.5
#: the logits' standard deviation over n keys
RULES: Mapping[str, Callable[[int], float]] = {
    "scaled, β = 1": lambda n: 1.0,
    "sharp, β = 3": lambda n: 3.0,
    "unscaled, d_k = 64, β = 8": lambda n: 8.0,
    f"scalable, β = {SLOPE:g} ln n": lambda n: scalable_softmax_beta(n, SLOPE),
}
_HEADS, _QUERIES, _HEAD_DIM = 32, 8, 8
_SLACK = 2e-5
WEIGHT = 0.9
GAP_LENGTHS, CAPS = (16, 1024, 131072), (2.0, 5.0, 8.0)
_CAPPED_KEYS = 96
#: between the logit of one key and that of all others
FIXED_GAP = 8.0


def measure(survey: Survey) -> None:
    """H and the largest weight against n for four rules of scaling; the largest weight that a gap allows.

    The first through one backend, against `random_energy`; the second through each in float64, where two values of the
    logits attain the bound and capped random logits stay below.
    """
    survey.each(bounds)
    survey.one(_lengths, "float32")


def _lengths(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Queries have length 1, so that the scale is β and the logits are iid N(0, β²)."""
    ends: list[tuple[float, float, float]] = []
    for keys in LENGTHS:
        rng = generator(seed, 1000, keys)
        q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM), dtype=np.float32) for n in (_QUERIES, keys))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        for rule, beta_at in RULES.items():
            beta = beta_at(keys)
            seen, exact = observe(one.attend, q, k, scale=beta), random_energy(keys, beta)
            where: Where = {"backend": one.name, "rule": rule, "keys": keys}
            for quantity, values, expected in (
                ("entropy", seen.entropy, exact.entropy),
                ("largest_weight", seen.largest_weight, exact.largest_weight),
            ):
                yield mean_row(quantity, where, values[0], predicted=expected, slack=_SLACK)
            if rule == next(iter(RULES)) and keys in ENDS:
                ends.append(
                    (exact.entropy / math.log(keys), *mean_over_clusters(seen.entropy[0] / math.log(keys)))
                )
    (short, low, low_error), (long, high, high_error) = ends
    quantity = "H/ln n of long rows over that of short ones"
    error = high / low * math.hypot(low_error / low, high_error / high)
    ends_of = {"rule": next(iter(RULES)), "lengths": " and ".join(map(str, ENDS))}
    yield one.row(quantity, ends_of, long / short, high / low, standard_error=error, slack=_SLACK)


def bounds(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Logits of two values attain the bound; the gap that a weight of .9 needs, and soft caps."""
    for keys in GAP_LENGTHS:
        for quantity, kind, gap in (
            ("weight at the gap that .9 needs", "gap", required_gap(keys, WEIGHT)),
            ("weight at a fixed gap", "fixed gap", FIXED_GAP),
        ):
            expected, found = largest_possible_weight(keys, gap), _weight_at_gap(one, keys, gap)
            yield one.row(quantity, {"keys": keys, kind: gap}, expected, found, slack=1e-10)
        for cap in CAPS:
            expected, found = soft_cap_largest_weight(keys, cap), _weight_at_gap(one, keys, 2 * cap)
            where = {"keys": keys, "cap": cap}
            yield one.row("weight at the gap of a soft cap", where, expected, found, slack=1e-10)
    rng = generator(seed, 1100)
    for cap in CAPS:
        logits = cap * np.tanh(8 * rng.standard_normal((64, _CAPPED_KEYS)) / cap)
        bound = soft_cap_largest_weight(_CAPPED_KEYS, cap)
        # one key a dimension: any logits at all can be given to a backend
        unit = np.eye(_CAPPED_KEYS)[None, None]
        weights = one.attend(logits[None, None], unit, unit, causal=False, scale=1.0)
        largest = float(weights.max())
        where = {"keys": _CAPPED_KEYS, "cap": cap}
        room = {"slack": 1e-12 * bound, "relation": "≤"}
        yield one.row(
            "largest weight under a soft cap", where, bound, largest if largest > 0 else math.nan, **room
        )


def _weight_at_gap(one: OpenBackend, keys: int, gap: float) -> float:
    """Weight of one key whose logit is `gap`, all others being 0."""
    q, k = np.ones((1, 1, 1, 1)), np.zeros((1, 1, keys, 1))
    k[0, 0, keys // 2] = gap
    v = (k > 0).astype(np.float64)
    return float(one.attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0])


def conclusion(rows: Sequence[Row]) -> str:
    """H/ln n at both ends of the lengths, at a fixed β and at one that grows with ln n."""

    def at(rule: str, keys: int, quantity: str) -> float:
        return next((row.measured for row in pick(rows, quantity, rule=rule, keys=keys)), math.nan)

    if not any("rule" in row.where for row in rows):
        return f"No backend could be measured against the length. {agreement(rows, 'the predictions')}."
    low, high = ENDS
    first, *_, last = RULES
    return (
        f"From n = {low} to {high} H/ln n of the softmax at the fixed scale β = 1 goes from "
        f"{at(first, low, 'entropy') / math.log(low):.3f} to {at(first, high, 'entropy') / math.log(high):.3f}; with "
        f"β = {SLOPE:g} ln n it goes from {at(last, low, 'entropy') / math.log(low):.3f} to "
        f"{at(last, high, 'entropy') / math.log(high):.3f}, and theory has it freeze beyond n = "
        f"{scalable_softmax_freezing_length(SLOPE):.0f}. A weight of {WEIGHT:g} over {GAP_LENGTHS[-1]} keys needs "
        f"logits {required_gap(GAP_LENGTHS[-1], WEIGHT):.1f} apart. {agreement(rows, 'the predictions')}."
    )


def draw(finding: Finding) -> Figure:
    """Entropy and largest weight against n by rule, and the largest weight that a gap allows."""
    figure, (entropy, weight, bound) = new_figure(3, 1, width=14.0, height=4.9)
    for panel, quantity in ((entropy, "entropy"), (weight, "largest_weight")):
        _by_rule(panel, pick(finding.rows, quantity))
    text = "β = ½ ln n freezes beyond"
    place = scalable_softmax_freezing_length(SLOPE) * 0.9, 0.02
    entropy.text(*place, text, transform=entropy.get_xaxis_transform(), color=GREY, fontsize=9, ha="right")
    _by_gap(bound, [row for row in finding.rows if "gap" in row.where])
    entitle(entropy, "At a fixed β the softmax disperses ...", "keys n", "entropy / ln n")
    entitle(weight, "... and its largest weight fades", "keys n", "mean largest weight")
    entitle(bound, "No weight exceeds what the gap allows", "keys n", "largest possible weight")
    handles, labels = entropy.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9.5, frameon=False)
    return figure


def _by_rule(panel: Axes, rows: Sequence[Row]) -> None:
    """A curve and points a rule, entropies in units of ln n, and the length at which the last rule freezes."""
    for rule, colour in zip(RULES, CYCLE, strict=False):
        mine = pick(rows, rule=rule)
        if not mine:
            continue
        x = numbers(mine, "keys")
        unit = np.log(x) if mine[0].quantity == "entropy" else np.ones_like(x)
        exact = smooth(list(x), [row.predicted for row in mine] / unit)
        panel.plot(*exact, color=colour, linewidth=1.7, label=rule)
        measured(panel, mine, "keys", colour, unit, markersize=4)
    powers_of_two(panel, LENGTHS[::2])
    boundary(panel, scalable_softmax_freezing_length(SLOPE))


def _by_gap(panel: Axes, rows: Sequence[Row]) -> None:
    """The largest possible weight against n for four gaps, and the gaps that a weight of .9 needs."""
    line = np.geomspace(2, 2**20, 200)
    for gap, colour in zip((4.0, 8.0, 12.0, 16.0), CYCLE, strict=False):
        panel.plot(line, 1 / (1 + (line - 1) * math.exp(-gap)), color=colour, linewidth=1.7)
        x, y = (0.85 * math.exp(gap), 0.48) if math.exp(gap) < line[-1] else (line[-1], 0.78)
        note(panel, x, y, f"Δ = {gap:g}", colour, ha="right")
    for keys, row in {float(row.where["keys"]): row for row in rows}.items():
        allowed = 1 / (1 + (line - 1) * math.exp(-float(row.where["gap"])))
        panel.plot(line, allowed, "--", color=GREY, linewidth=1.0)
        panel.plot([keys], [row.measured], "ko", markersize=5, mfc="none")
        text = f"{float(row.where['gap']):.1f}"
        panel.annotate(
            text, (keys, row.measured), (0, -15), textcoords="offset points", fontsize=9, ha="center"
        )
    text = "○ on its curve:\nthe gap Δ that\na weight of .9\nneeds over n keys"
    panel.text(0.02, 0.2, text, transform=panel.transAxes, fontsize=9)
    panel.set_ylim(0, 1.05)
    powers_of_two(panel, [2.0**power for power in range(1, 21, 3)])
