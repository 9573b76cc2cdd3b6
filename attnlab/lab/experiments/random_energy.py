"""Where does a softmax over random logits freeze as its temperature falls?

n independent normal logits of standard deviation β are Derrida's random energy model (1981) at the temperature 1/β. It
freezes at T_c = 1/√(2 ln n): above, the weight is spread over many keys, and the entropy is about ln n − β²/2; below, a
few keys hold it, and in the limit of many keys their weights follow the Poisson–Dirichlet law with m = β_c/β. The law
has a largest weight above ½ with the probability (sin πm/π) ∫_½¹ x^{−1−m} (1 − x)^{m−1} dx. At real n the level b_n of
the largest of n logits stands for β_c in m, and the transition is gradual: curves are exact integrals at each n. The
frozen phase is that of normal logits; other tails freeze elsewhere or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from attnlab.lab.experiment import Chart, Experiment, Subject, mean_over_clusters, measured, of
from attnlab.lab.finding import Row
from attnlab.lab.observables import observe
from attnlab.lab.theory import critical_beta, extreme_level, random_energy

LENGTHS = (64, 1024, 16384)
#: temperatures in units of the freezing one, 1/β_c
TEMPERATURES = (0.125, 0.25, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.5, 5.0)
_HEADS, _QUERIES, _HEAD_DIM = 24, 12, 16
_SLACK = 2e-5
#: the frozen law holds for n → ∞; at these n it is off by less than this from 1.5 β_c on
_FROZEN_SLACK, _DEEP = 0.05, 1.5
_AT = "T / T_c"


def measure(one: Subject) -> Iterator[Row]:
    """Entropy, largest weight and the share of rows with a weight above ½, through one backend.

    Queries have length 1, so that the scale is β and a row's logits are independent N(0, β²) numbers.
    """
    if not one.lead:
        return
    for keys in LENGTHS:
        for number, temperature in enumerate(TEMPERATURES):
            beta, rng = critical_beta(keys) / temperature, one.rng(500, keys, number)
            q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (_QUERIES, keys))
            q /= np.linalg.norm(q, axis=-1, keepdims=True)
            seen = observe(one.attend, q.astype(np.float32), k.astype(np.float32), scale=beta)
            exact, where = random_energy(keys, beta), {"keys": keys, _AT: temperature}
            yield one.mean("entropy", where, seen.entropy[0], exact.entropy, _SLACK)
            yield one.mean("largest weight", where, seen.largest_weight[0], exact.largest_weight, _SLACK)
            if beta >= _DEEP * critical_beta(keys):
                frozen, error = mean_over_clusters(seen.largest_weight[0] > 0.5)
                expected = frozen_fraction(keys, beta)
                # where nearly all rows are frozen, those seen not to be are too few to tell the error
                error = max(error, math.sqrt(expected * (1 - expected) / seen.largest_weight.size))
                room = {"standard_error": error, "slack": _FROZEN_SLACK}
                yield one.row("share of rows with a weight above ½", where, expected, frozen, **room)


def frozen_fraction(keys: int, beta: float) -> float:
    """P(p_max > ½) in the frozen phase, for n → ∞.

    At most one weight exceeds ½, so the probability is the mean number of weights that do, an integral over the
    intensity of the Poisson–Dirichlet law (Pitman and Yor 1997) with m = b_n/β. Raises ValueError where m is not
    below 1: there the row is not frozen.
    """
    from scipy.integrate import quad

    m = extreme_level(keys) / beta
    if not 0 < m < 1:
        raise ValueError(f"not frozen: b_n/β must lie between 0 and 1, got {m:g}")
    # 1 − x = y^{1/m} takes the singularity at x = 1 away
    integral, _ = quad(lambda y: (1 - y ** (1 / m)) ** (-1 - m) / m, 0.0, 0.5**m)
    return math.sin(math.pi * m) / math.pi * float(integral)


EXPERIMENT = Experiment(
    title="The softmax as a random energy model",
    measure=measure,
    dtypes=("float32",),
    sentence="Over 1024 keys the entropy is {cold:.2f} ln n at 0.4 of the freezing temperature, {critical:.2f} "
    "ln n at it and {hot:.2f} ln n at 2.5 times it; at a quarter of it {frozen:.0%} of the rows have one weight above "
    "½.",
    numbers={
        name: (lambda rows, at=at: measured("entropy", keys=1024, **{_AT: at})(rows) / math.log(1024))
        for name, at in (("cold", 0.4), ("critical", 1.0), ("hot", 2.5))
    }
    | {"frozen": measured("share of rows with a weight above ½", keys=1024, **{_AT: 0.25})},
    lesson="Freezing is gradual at real lengths, and ln n decides where: 64 and 16,384 keys lie close together "
    "in units of their own freezing temperature.",
    charts=(
        Chart(
            title="Below T_c the entropy of a row collapses",
            x=_AT,
            x_label="temperature / freezing temperature",
            y="entropy / ln n",
            unit=lambda row: math.log(row.where["keys"]),
            lines={f"n = {keys:,}": of("entropy", keys=keys) for keys in LENGTHS},
            marks={"T_c": 1.0},
        ),
        Chart(
            title="Frozen, one key often holds over half",
            x=_AT,
            x_label="temperature / freezing temperature",
            y="share of rows with a weight above ½",
            lines={
                f"n = {keys:,}": of("share of rows with a weight above ½", keys=keys) for keys in LENGTHS[1:]
            },
        ),
    ),
)
