"""Entropy and largest weight against the number of keys, for rules of scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.figures import CYCLE, GREY, MARKERS, entitle, new_figure, note, powers_of_two, smooth
from attnlab.lab import panels, theory
from attnlab.lab.finding import Experiment, Finding, Row, Shown, pick, values
from attnlab.lab.observables import observe
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator

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
    f"scalable, β = {SLOPE:g} ln n": lambda n: theory.scalable_softmax_beta(n, SLOPE),
}
_FIRST, *_, _LAST = RULES
_HEADS, _QUERIES, _HEAD_DIM = 32, 8, 8
_SLACK = 2e-5
WEIGHT = 0.9
GAP_LENGTHS, CAPS = (16, 1024, 131072), (2.0, 5.0, 8.0)
#: between the logit of one key and that of all others
FIXED_GAP = 8.0


def measure(survey: Survey) -> None:
    """H and the largest weight against n for four rules of scaling; the largest weight that a gap allows.

    The first through one backend, against `random_energy`; the second through each in float64, where two values of the
    logits attain the bound.
    """
    survey.each(bounds)
    survey.one(_lengths, "float32")


def _lengths(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Queries have length 1, so that the scale is β and the logits are iid N(0, β²)."""
    for keys in LENGTHS:
        rng = generator(seed, 1000, keys)
        q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM), dtype=np.float32) for n in (_QUERIES, keys))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        for rule, beta_at in RULES.items():
            beta = beta_at(keys)
            seen, exact = observe(one.attend, q, k, scale=beta), theory.random_energy(keys, beta)
            where = {"rule": rule, "keys": keys}
            yield one.mean("entropy", where, seen.entropy[0], exact.entropy, _SLACK)
            yield one.mean("largest_weight", where, seen.largest_weight[0], exact.largest_weight, _SLACK)


def bounds(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Two values attain the bound: at the gap that a weight of .9 needs, at a fixed one, at those of soft caps.

    And where among the others the key lies makes no difference.
    """

    def weight(keys: int, gap: float, place: int) -> float:
        """Of the one key whose logit is the gap, all others being 0."""
        q, k = np.ones((1, 1, 1, 1)), np.zeros((1, 1, keys, 1))
        k[0, 0, place] = gap
        return float(one.attend(q, k, (k > 0).astype(np.float64), causal=False, scale=1.0)[0, 0, 0, 0])

    for keys in GAP_LENGTHS:
        needed = theory.required_gap(keys, WEIGHT)
        for quantity, kind, value, gap in (
            ("weight at the gap that .9 needs", "gap", needed, needed),
            ("weight at a fixed gap", "fixed gap", FIXED_GAP, FIXED_GAP),
            *(("weight at the gap of a soft cap", "cap", cap, 2 * cap) for cap in CAPS),
        ):
            found, expected = weight(keys, gap, keys // 2), theory.largest_possible_weight(keys, gap)
            yield one.row(quantity, {"keys": keys, kind: value}, expected, found, slack=1e-10)
        there = [weight(keys, FIXED_GAP, place) for place in (0, keys // 2, keys - 1)]
        change, quantity = max(there) - min(there), "change of a weight with the distance of its key"
        yield one.row(quantity, {"keys": keys}, 0.0, change, slack=1e-10)


def conclusion(rows: Sequence[Row]) -> str:
    """H/ln n at both ends of the lengths, at a fixed β and at one that grows with ln n."""
    if not any("rule" in row.where for row in rows):
        return f"No backend could be measured against the length. {agreement(rows, 'the predictions')}."

    def ends(rule: str) -> str:
        found = {row.where["keys"]: row.measured for row in pick(rows, "entropy", rule=rule)}
        low, high = (found.get(keys, math.nan) / math.log(keys) for keys in ENDS)
        return f"{low:.3f} to {high:.3f}"

    return (
        f"From n = {ENDS[0]} to {ENDS[1]} H/ln n of the softmax at the fixed scale β = 1 goes from {ends(_FIRST)}; "
        f"with β = {SLOPE:g} ln n it goes from {ends(_LAST)}, and theory has it freeze beyond n = "
        f"{theory.scalable_softmax_freezing_length(SLOPE):.0f}. A weight of {WEIGHT:g} over {GAP_LENGTHS[-1]} keys "
        f"needs logits {theory.required_gap(GAP_LENGTHS[-1], WEIGHT):.1f} apart. {agreement(rows, 'the predictions')}."
    )


def draw(finding: Finding) -> Figure:
    """Entropy and largest weight by rule, and the largest weight that a gap allows."""
    figure, (entropy, weight, bound) = new_figure(3, 1, width=14.0, height=4.9)
    for panel, quantity in ((entropy, "entropy"), (weight, "largest_weight")):
        _by_rule(panel, pick(finding.rows, quantity))
    place = theory.scalable_softmax_freezing_length(SLOPE) * 0.9, 0.02
    look: dict[str, Any] = {"color": GREY, "fontsize": 9, "ha": "right"}
    entropy.text(*place, "β = ½ ln n freezes beyond", transform=entropy.get_xaxis_transform(), **look)
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
    for rule, colour, marker in zip(RULES, CYCLE, MARKERS, strict=False):
        mine = pick(rows, rule=rule)
        if mine:
            x = values(mine, "keys")
            unit = np.log(x) if mine[0].quantity == "entropy" else np.ones_like(x)
            exact = smooth(list(x), values(mine, "predicted") / unit)
            panel.plot(*exact, color=colour, linewidth=1.7)
            panels.measured(panel, mine, "keys", colour, unit, fmt=marker, label=rule)
    powers_of_two(panel, LENGTHS[::2])
    panels.boundary(panel, theory.scalable_softmax_freezing_length(SLOPE))


def _by_gap(panel: Axes, rows: Sequence[Row]) -> None:
    """The largest possible weight against n for four gaps, and the gaps that a weight of .9 needs."""
    line = np.geomspace(2, 2**20, 200)
    for gap, colour in zip((4.0, 8.0, 12.0, 16.0), CYCLE, strict=False):
        panel.plot(line, 1 / (1 + (line - 1) * math.exp(-gap)), color=colour, linewidth=1.7)
        x, y = (0.85 * math.exp(gap), 0.48) if math.exp(gap) < line[-1] else (line[-1], 0.78)
        note(panel, x, y, f"Δ = {gap:g}", colour, ha="right")
    for keys, row in {float(row.where["keys"]): row for row in rows}.items():
        gap, place = float(row.where["gap"]), (keys, row.measured)
        panel.plot(line, 1 / (1 + (line - 1) * math.exp(-gap)), "--", color=GREY, linewidth=1.0)
        panel.plot([keys], [row.measured], "ko", markersize=5, mfc="none")
        panel.annotate(f"{gap:.1f}", place, (0, -15), textcoords="offset points", fontsize=9, ha="center")
    text = "○ on its curve:\nthe gap Δ that\na weight of .9\nneeds over n keys"
    panel.text(0.02, 0.2, text, transform=panel.transAxes, fontsize=9)
    panel.set_ylim(0, 1.05)
    powers_of_two(panel, [2.0**power for power in range(1, 21, 3)])


EXPERIMENT = Experiment(
    title="The softmax and the length of the sequence",
    question="Can a softmax stay sharp as the sequence grows?",
    theory="At a fixed standard deviation β of independent normal logits H approaches ln n − β²/2 as n "
    "grows, so that H/ln n tends to 1: the softmax disperses (Veličković et al. 2024). For a few keys to "
    "keep a share of the weight at every n, β must grow at least as √(2 ln n). With β = a ln n (Nakanishi "
    "2025) it passes that once ln n > 2/a². And whatever the logits are, no weight exceeds 1/(1 + (n − "
    "1)e^{−Δ}), Δ being the gap between the largest and the smallest.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Left and middle: entropy and mean largest weight against n for four rules of scaling; lines "
    "are exact, bars five standard errors; the dashed line is where β = ½ ln n passes √(2 ln n). Right: the "
    "largest weight that a gap Δ allows; each circle is a weight of .9 measured at the gap which .9 needs "
    "at that n.",
    lesson="At a fixed β H/ln n tends to 1 as n grows. A weight of .9 over n keys needs a gap of ln 9(n − 1): "
    "4.9 at n = 16, 9.1 at 1024, 14.0 at 131072. A soft cap c keeps logits within 2c of each other, so that a "
    "weight of .9 is out of reach beyond 1 + e^{2c}/9 keys: 7 at c = 2, 2,448 at c = 5, 987,346 at c = 8, and "
    "3·10⁴² at c = 50, which Gemma 2 uses.",
    shown=(
        Shown("entropy", {"keys": (128, 16384)}),
        Shown("largest_weight", {"keys": (128, 16384)}),
        Shown("weight at the gap that .9 needs"),
        Shown("weight at the gap of a soft cap"),
    ),
)
