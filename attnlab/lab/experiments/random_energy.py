"""Where does a softmax over random logits freeze as its temperature falls?

n independent normal logits of standard deviation β are Derrida's random energy model (1981) at the temperature 1/β. It
freezes at T_c = 1/√(2 ln n): above, the weight is spread over many keys, and the entropy is about ln n − β²/2; below, a
few keys hold it, and in the limit of many keys their weights follow the Poisson–Dirichlet law with m = β_c/β. At
real n the transition is gradual: curves are exact integrals at each n. The
frozen phase is that of normal logits; other tails freeze elsewhere or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.lab.experiment import Chart, Experiment, Row, Subject, measured, of
from attnlab.lab.theory import critical_beta, random_energy

LENGTHS = (64, 1024, 16384)
#: temperatures in units of the freezing one, 1/β_c
TEMPERATURES = (0.125, 0.25, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.5, 5.0)
_HEADS, _QUERIES, _HEAD_DIM = 24, 8, 8
_SLACK = 2e-5


def measure(one: Subject) -> Iterator[Row]:
    """Entropy and largest weight, through one backend.

    Queries have length 1, so that the scale is β and a row's logits are independent N(0, β²) numbers.
    """
    if not one.lead:
        return
    for keys in LENGTHS:
        for number, temperature in enumerate(TEMPERATURES):
            beta = critical_beta(keys) / temperature
            seen = one.observed((500, keys, number), (_HEADS, _QUERIES, keys), _HEAD_DIM, beta, length=1.0)
            where, exact = {"keys": keys, "temperature": temperature}, random_energy(keys, beta)
            yield from one.means(
                where, seen, exact, "entropy / ln n", "largest weight", "mean ‖J‖²", slack=_SLACK
            )


EXPERIMENT = Experiment(
    title="The softmax as a random energy model",
    measure=measure,
    dtypes=("float32",),
    sentence="Over 1024 keys the entropy is {cold:.2f} ln n at 0.4 of the freezing temperature, {critical:.2f} ln n at "
    "it and {hot:.2f} ln n at 2.5 times it; the largest weight averages {cold_weight:.2f}, {critical_weight:.2f} and "
    "{hot_weight:.3f}.",
    numbers={
        name + ending: measured(quantity, keys=1024, temperature=at)
        for name, at in (("cold", 0.4), ("critical", 1.0), ("hot", 2.5))
        for ending, quantity in (("", "entropy / ln n"), ("_weight", "largest weight"))
    },
    lesson="Freezing is gradual at real lengths, and ln n decides where: 64 and 16,384 keys lie close together in "
    "units of their own freezing temperature.",
    charts=(
        Chart(
            title="Below T_c the entropy of a row collapses",
            x="temperature",
            y="entropy / ln n",
            lines={f"n = {keys:,}": of("entropy / ln n", keys=keys) for keys in LENGTHS},
            marks={"T_c": 1.0},
        ),
        Chart(
            title="On average gradients pass best below T_c",
            x="temperature",
            y="mean ‖J‖²",
            lines={f"n = {keys:,}": of("mean ‖J‖²", keys=keys) for keys in LENGTHS},
            marks={"T_c": 1.0},
        ),
    ),
)
