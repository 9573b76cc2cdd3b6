"""When do few keys take the weight: as d_k grows, as the temperature falls, as the sequence gets longer?

Given its query, a row of standard normal inputs has n independent normal logits. Their standard deviation β is about
√d_k without the scale and about 1 with it. The softmax over them is Derrida's random energy model (1981) at the
temperature 1/β. It freezes at T_c = 1/β_c, β_c = √(2 ln n). Well above it the weight is spread over many keys, and the
entropy is about ln n − β²/2. Below it a few keys hold it. At fixed m = β_c/β their weights follow, as n → ∞, the
Poisson–Dirichlet law of m (Talagrand 2003). So unscaled attention freezes at d_k = 2 ln n. That holds for normal
logits. Unscaled random ±1, whose sums have shorter tails, freeze where the entropy ln n − d_k (tanh 1 − ln cosh 1)
reaches 0: at d_k = 3.05 ln n. (Given q, E e^{bs} = cosh^{d_k} b, so while many keys share the weight H is ln n + d_k
(ln cosh b − b tanh b), here with b = 1.) At finite n the transition is gradual: curves join exact integrals.

For independent normal logits of a fixed β, and for bounded ones, H/ln n nears 1 as n grows: the softmax disperses
(Veličković et al. 2024). At β = 8 it rises only from about 70,000 keys on (attnlab.theory.random_energy), and is near 1
only if ln n is far above β²/2 = 32. With normal ones a few keys keep a share of the weight as n grows only if β/√(2 ln
n) stays above a constant greater than 1 (E Σp² → 1 − β_c/β). β = a ln n (Nakanishi 2025) passes β_c once ln n > 2/a².
Whatever the logits are, no weight exceeds 1/(1 + (n − 1)e^{−Δ}). Δ is the gap between the largest and the smallest
logit. And ln Z lies between the largest logit and ln n above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attnlab.lab import theory
from attnlab.lab.experiments import Chart, Experiment, Row, Subject, measured, of

#: keys per row, head dimensions, heads, and queries per head, for the leading backend. Below d_k = 4 the mean of Σp²
#: depends on a few long queries, and the measured rows do not show its error
KEYS, DIMS, _SIZES = 1024, (8, 16, 64, 256), (16, 16)
#: the same sizes for any other backend, and for a slow one
_OTHERS, _SLOW = (KEYS, (64, 256), *_SIZES), (64, (8, 64), 32, 2)
#: temperatures in units of the freezing temperature 1/β_c, and the lengths at which each is measured
TEMPERATURES, LENGTHS = (0.25, 0.4, 0.7, 1.0, 1.6, 2.5, 5.0), (64, 1024, 16384)
SLOPE = 0.5
SCALED, UNSCALED, SCALABLE = "β = 1 (scaled)", "β = 8 (unscaled, d_k = 64)", f"β = {SLOPE:g} ln n (scalable)"
#: rules for the standard deviation of logits over n keys, and the lengths at which each rule is measured
RULES: Mapping[str, Callable[[int], float]] = {
    SCALED: lambda n: 1.0,
    UNSCALED: lambda n: 8.0,
    SCALABLE: lambda n: SLOPE * math.log(n),
}
RULE_LENGTHS = (16, 64, 1024, 16384)
#: heads and queries, and head dimension, if queries have length 1: logits are then independent N(0, β²) numbers
_GIVEN_SIZES, _GIVEN_DIM = (24, 8), 6
#: single precision resolves weights to about 1e-6 and entropies to 1e-5
_SLACK = 2e-5
WEIGHT, _GAP_LENGTHS, _CAPS = 0.9, (16, 64, 256, 1024, 4096, 16384, 65536, 131072), (2.0, 5.0, 8.0)
#: the gap between the logit of one key and that of all others
_FIXED_GAP = 8.0
ENTROPY, LARGEST, OF_HEAD = "entropy / ln n", "largest weight", "largest logit of a head"
AT_NEEDED, AT_FIXED = "weight at the gap that .9 needs", "weight at a fixed gap"
AT_CAP = "weight at the gap of a soft cap"


def measure(one: Subject) -> Iterator[Row]:
    """In float32: means over random rows, compared with exact integrals. In float64: the largest weight at a given gap.

    Rows of one head share its keys, so heads are clusters.
    """
    if one.dtype == "float64":
        yield from bounds(one)
        return
    keys, dims, heads, queries = _SLOW if one.slow else (KEYS, DIMS, *_SIZES) if one.lead else _OTHERS
    for head_dim in dims:
        for scaling, scale in (("unscaled", 1.0), ("scaled", head_dim**-0.5)):
            seen = one.observed((head_dim,), (heads, queries, keys), head_dim, scale)
            exact = theory.attention_under_random_inputs(keys, head_dim, scale)
            where = {"scaling": scaling, "keys": keys, "head_dim": head_dim}
            quantities = (ENTROPY, LARGEST, "Σp²", "ln Z", "largest logit")
            yield from one.means(where, seen, exact, *quantities, slack=_SLACK)
            yield one.mean(OF_HEAD, where, seen.largest_logit[0].max(axis=-1, keepdims=True), None)
    if one.lead:
        rows: list[tuple[dict[str, float | str], int, float]] = [
            ({"keys": keys, "T/T_c": temperature}, keys, theory.critical_beta(keys) / temperature)
            for keys in LENGTHS
            for temperature in TEMPERATURES
        ]
        rows += [
            ({"rule": rule, "keys": n}, n, beta(n)) for rule, beta in RULES.items() for n in RULE_LENGTHS
        ]
        for given, keys, beta in rows:
            seen = one.observed((500, keys, round(1e3 * beta)), (*_GIVEN_SIZES, keys), _GIVEN_DIM, beta, 1.0)
            exact = theory.random_energy(keys, beta)
            yield from one.means(given, seen, exact, ENTROPY, LARGEST, slack=_SLACK)


def bounds(one: Subject) -> Iterator[Row]:
    """Logits of two values reach the bound: at the gap that a weight of .9 needs, at a fixed gap, and at soft caps.

    The place of the key among the others must make no difference.
    """

    def weight(keys: int, gap: float, place: int) -> float:
        """The weight of the one key whose logit is `gap`; all other logits are 0."""
        q, k = np.ones((1, 1, 1, 1)), np.zeros((1, 1, keys, 1))
        k[0, 0, place] = gap
        return float(one.attend(q, k, (k > 0).astype(np.float64), causal=False, scale=1.0)[0, 0, 0, 0])

    for keys in _GAP_LENGTHS[: 3 if one.slow else None]:
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
    about=__doc__,
    title="Saturation of the softmax",
    measure=measure,
    dtypes=("float32", "float64"),
    sentences=(
        "Without the scale the largest of 1024 weights averages {few:.2f} at d_k = 8 (predicted: 0.23) and {many:.2f} "
        "at 256 (0.86). With 1/√d_k it averages {scaled:.3f} at 256 (0.016).",
        "Over 1024 keys the entropy is {cold:.2f} ln n at 0.4 of the freezing temperature and {hot:.2f} ln n at 2.5 "
        "times it.",
        "At β = 1 it is {short:.2f} ln n over 64 keys and {long:.2f} ln n over 16,384.",
        "Without the scale the largest logit of a head over 16 queries and 1024 keys averages {logit:.1f} ± "
        "{logit_error:.1f} at d_k = 64, and with it an eighth of that.",
    ),
    numbers={
        "few": measured(LARGEST, scaling="unscaled", head_dim=8, keys=KEYS),
        "many": measured(LARGEST, scaling="unscaled", head_dim=256, keys=KEYS),
        "scaled": measured(LARGEST, scaling="scaled", head_dim=256, keys=KEYS),
        "cold": measured(ENTROPY, np.mean, "measured", keys=KEYS, **{"T/T_c": 0.4}),
        "hot": measured(ENTROPY, np.mean, "measured", keys=KEYS, **{"T/T_c": 2.5}),
        "short": measured(ENTROPY, rule=SCALED, keys=64),
        "long": measured(ENTROPY, rule=SCALED, keys=16384),
        "logit": measured(OF_HEAD, scaling="unscaled", head_dim=64, keys=KEYS),
        "logit_error": measured(OF_HEAD, field="standard_error", scaling="unscaled", head_dim=64, keys=KEYS),
    },
    lesson="For independent normal logits the standard deviation β of a row against β_c = √(2 ln n) decides. For "
    "standard normal components 1/√d_k keeps β near 1 from d_k ≈ 16 on, below β_c (3.7 at n = 1024). "
    "For other logits, as those with heavy tails, β alone does not decide: one that lies 9.13 above 1023 equal "
    "ones has a weight of .9 at β = 0.285. A weight of .9 over n keys needs a gap of ln(9(n − 1)): 4.9 at n = 16, "
    "9.1 at 1024, 14.0 at 131,072. A soft cap c keeps logits within 2c of each other. So a weight of .9 is out of "
    "reach beyond 1 + e^{2c}/9 keys: 7 at c = 2, 2,448 at c = 5, 987,346 at c = 8. The largest logit of a head is "
    "what QK-Clip bounds during training (Kimi K2, 2507.20534).",
    charts=(
        Chart(
            title="Unscaled, few keys take the weight",
            x="head_dim",
            x_label=f"head dimension d_k, at n = {KEYS}",
            y="mean largest weight",
            lines={name: of(LARGEST, scaling=name, keys=KEYS) for name in ("unscaled", "scaled")},
            marks={"d_k = 2 ln n": theory.critical_beta(KEYS) ** 2},
            limits=(0.0, 1.05),
        ),
        Chart(
            title="Against ln T entropy changes fastest above T_c",
            x="T/T_c",
            y=ENTROPY,
            lines={f"n = {keys:,}": of(ENTROPY, keys=keys, **{"T/T_c": ...}) for keys in LENGTHS},
            marks={"T_c": 1.0},
        ),
        Chart(
            title="At β = 1 the softmax disperses",
            x="keys",
            y=ENTROPY,
            lines={rule: of(ENTROPY, rule=rule) for rule in RULES},
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
