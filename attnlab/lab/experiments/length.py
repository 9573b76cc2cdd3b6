"""Can a softmax stay sharp as the sequence grows?

At a fixed standard deviation β of independent normal logits the entropy H approaches ln n − β²/2 as n grows, so that
H/ln n tends to 1: the softmax disperses (Veličković et al. 2024). For a few keys to keep a share of the weight at every
n, β must grow at least as √(2 ln n). With β = a ln n (Nakanishi 2025) it passes that once ln n > 2/a². And whatever the
logits are, no weight exceeds 1/(1 + (n − 1)e^{−Δ}), Δ being the gap between the largest and the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attnlab.lab import theory
from attnlab.lab.experiment import Chart, Experiment, Row, Subject, measured, of

LENGTHS = (16, 64, 256, 1024, 4096, 16384)
SLOPE = 0.5
SCALED, UNSCALED, SCALABLE = "β = 1 (scaled)", "β = 8 (unscaled, d_k = 64)", f"β = {SLOPE:g} ln n (scalable)"
#: the logits' standard deviation over n keys
RULES: Mapping[str, Callable[[int], float]] = {
    SCALED: lambda n: 1.0,
    "β = 3": lambda n: 3.0,
    UNSCALED: lambda n: 8.0,
    SCALABLE: lambda n: theory.scalable_softmax_beta(n, SLOPE),
}
_HEADS, _QUERIES, _HEAD_DIM = 24, 8, 8
_SLACK = 2e-5
WEIGHT = 0.9
_GAP_LENGTHS, _CAPS = (16, 256, 1024, 16384, 131072), (2.0, 5.0, 8.0)
#: between the logit of one key and that of all others
_FIXED_GAP = 8.0
AT_NEEDED, AT_FIXED, AT_CAP = (
    "weight at the gap that .9 needs",
    "weight at a fixed gap",
    "weight at the gap of a soft cap",
)


def measure(one: Subject) -> Iterator[Row]:
    """In float64 the largest weight that a gap allows; in float32, through one backend, entropies against n."""
    if one.dtype == "float64":
        yield from bounds(one)
        return
    for keys in LENGTHS if one.lead else ():
        for rule, beta_at in RULES.items():
            beta, where = beta_at(keys), {"rule": rule, "keys": keys}
            seen = one.observed((1000, keys), (_HEADS, _QUERIES, keys), _HEAD_DIM, beta, length=1.0)
            exact = theory.random_energy(keys, beta)
            yield from one.means(where, seen, exact, "entropy / ln n", "largest weight", slack=_SLACK)


def bounds(one: Subject) -> Iterator[Row]:
    """Two values of the logits attain the bound: at the gap that a weight of .9 needs, at a fixed one, at soft caps.

    And where among the others the key lies makes no difference.
    """

    def weight(keys: int, gap: float, place: int) -> float:
        """Of the one key whose logit is the gap, all others being 0."""
        q, k = np.ones((1, 1, 1, 1)), np.zeros((1, 1, keys, 1))
        k[0, 0, place] = gap
        return float(one.attend(q, k, (k > 0).astype(np.float64), causal=False, scale=1.0)[0, 0, 0, 0])

    for keys in _GAP_LENGTHS:
        needed = theory.required_gap(keys, WEIGHT)
        for quantity, kind, value, gap in (
            (AT_NEEDED, "gap", needed, needed),
            (AT_FIXED, "fixed gap", _FIXED_GAP, _FIXED_GAP),
            *((AT_CAP, "cap", cap, 2 * cap) for cap in _CAPS),
        ):
            found, expected = weight(keys, gap, keys // 2), theory.largest_possible_weight(keys, gap)
            yield one.row(quantity, {"keys": keys, kind: value}, expected, found, slack=1e-10)
        there = [weight(keys, _FIXED_GAP, place) for place in (0, keys // 2, keys - 1)]
        quantity = "change of a weight with the distance of its key"
        yield one.row(quantity, {"keys": keys}, 0.0, max(there) - min(there), slack=1e-10)


EXPERIMENT = Experiment(
    title="The softmax and the length of the sequence",
    measure=measure,
    dtypes=("float64", "float32"),
    sentence="From n = 64 to 16,384 H/ln n goes from {short:.3f} to {long:.3f} at β = 1, and from "
    "{scalable_short:.3f} to {scalable_long:.3f} at β = ½ ln n. A gap of 8 gives one key of 16,384 a weight of "
    "{weight:.2f}.",
    numbers={
        "short": measured("entropy / ln n", rule=SCALED, keys=64),
        "long": measured("entropy / ln n", rule=SCALED, keys=16384),
        "scalable_short": measured("entropy / ln n", rule=SCALABLE, keys=64),
        "scalable_long": measured("entropy / ln n", rule=SCALABLE, keys=16384),
        "weight": measured(AT_FIXED, keys=16384),
    },
    lesson="At a fixed β H/ln n tends to 1 as n grows. A weight of .9 over n keys needs a gap of ln 9(n − 1): "
    "4.9 at n = 16, 9.1 at 1024, 14.0 at 131,072. A soft cap c keeps logits within 2c of each other, so that a weight "
    "of .9 is out of reach beyond 1 + e^{2c}/9 keys: 7 at c = 2, 2,448 at c = 5, 987,346 at c = 8.",
    charts=(
        Chart(
            title="At a fixed β the softmax disperses",
            x="keys",
            y="entropy / ln n",
            lines={rule: of("entropy / ln n", rule=rule) for rule in RULES},
            limits=(0.0, 1.05),
        ),
        Chart(
            title="A gap of logits is worth less at length",
            x="keys",
            y="weight of one key",
            lines={"gap 8": of(AT_FIXED)} | {f"soft cap {cap:g}": of(AT_CAP, cap=cap) for cap in _CAPS},
            limits=(0.0, 1.05),
        ),
    ),
)
