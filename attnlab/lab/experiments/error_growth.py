"""How does the rounding error grow with n, d_k and the size of the logits?

A stored number is off by 0.42 u in the root mean square, u being 2⁻²⁴ in float32, 2⁻¹¹ in float16 and 2⁻⁸ in bfloat16.
In 16 bits nothing else counts, and three errors can be predicted: that of storing the output alone (full precision
inside), the weights too, or the scores too. A measured error must lie within five standard errors, or a quarter, of the
nearest one; the quarter, because roundings of similar mantissas are from 1/1.47 to 1.36 times the average. In float32
the roundings of arithmetic count several times more: the budget takes sums in order, and is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.error_budget import CLASSES
from attnlab.lab.experiment import Chart, Experiment, Row, Subject, generator, measured, of
from attnlab.lab.theory import ErrorBudget, classify, precision_classes
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import round_to

#: what is varied, and what the others are meanwhile
AXES: Mapping[str, tuple[tuple[float, ...], float]] = {
    "keys": ((16, 64, 256, 1024, 4096), 512),
    "head_dim": ((4, 16, 64, 256), 64),
    "logit_std": ((0.25, 1.0, 2.0, 4.0, 8.0, 16.0), 1.0),
}
_HEADS, _QUERIES = 2, 32
#: by what part of itself a prediction may be off where a mantissa is not log-uniform
_OFF = 0.25
ERROR = "relative error"


@dataclass(frozen=True)
class Point:
    """One set of inputs for all backends, so that they differ by their own roundings alone, and its error budgets."""

    dtype: str
    arrays: Sequence[NDArray[Any]]
    scale: float
    budgets: Mapping[str, ErrorBudget]

    @property
    def loosest(self) -> ErrorBudget:
        """The budget of the least precise class."""
        return list(self.budgets.values())[-1]

    def predictions(self) -> dict[str, float]:
        """Relative error by precision class, with the rounding of the output as it is: the exact output, rounded.

        It is below its budget where one weight is near 1: the output is then nearly a value, which the format holds.
        """
        exact = self.loosest.output
        rounded = round_to(exact, self.dtype).astype(np.float64) - exact
        share = float(np.linalg.norm(rounded) / np.linalg.norm(exact))
        others = {
            name: budget.restricted_to(*(source for source in budget.variances if source != "output"))
            for name, budget in self.budgets.items()
        }
        return {name: math.hypot(other.relative, share) for name, other in others.items()}


@lru_cache(maxsize=64)
def point(dtype: str, axis: str, value: float, seed: int) -> Point:
    """The point `value` of `axis` in `dtype`: q, k, v as cast, the same for every backend."""
    size = {**{name: usual for name, (_, usual) in AXES.items()}, axis: value}
    keys, dim = int(size["keys"]), int(size["head_dim"])
    rng, scale = generator(seed, 1200, list(AXES).index(axis), round(16 * value)), 1 / math.sqrt(dim)
    arrays = [
        round_to(factor * rng.standard_normal((1, _HEADS, n, dim)), dtype)
        for n, factor in ((_QUERIES, size["logit_std"]), (keys, 1.0), (keys, 1.0))
    ]
    # where the scale is a power of two it rounds nothing, and scores are rounded once
    roundings = 1 if math.frexp(scale)[0] == 0.5 else 2
    asked = Inputs.of(*arrays, dtype=dtype, scale=scale)
    return Point(dtype, arrays, scale, precision_classes(asked, score_roundings=roundings))


def measure(one: Subject) -> Iterator[Row]:
    """The relative Frobenius error along three axes against the nearest precision class; in float32 a bound."""
    for axis, (values, _) in AXES.items():
        for value in values:
            at = point(one.dtype, axis, value, one.seed)
            exact, where = at.loosest.output, {"dtype": one.dtype, "axis": axis, "value": value}
            off = one.attend(*at.arrays, causal=False, scale=at.scale).astype(np.float64) - exact
            relative = float(np.linalg.norm(off) / np.linalg.norm(exact))
            if one.dtype == "float32":  # the tightest budget that covers it
                name = (classify(relative, at.budgets) if math.isfinite(relative) else None) or list(
                    at.budgets
                )[-1]
                expected, relation = at.budgets[name].relative, "≤"
            else:
                known = at.predictions()
                distance = {one: abs(math.log(max(relative, 1e-30) / known[one])) for one in known}
                name, relation = min(distance, key=distance.__getitem__), "="
                expected = known[name]
            room = {"standard_error": expected * at.budgets[name].relative_scatter, "slack": _OFF * expected}
            yield one.row(ERROR, {**where, "precision": name}, expected, relative, relation=relation, **room)


EXPERIMENT = Experiment(
    title="The growth of the error",
    measure=measure,
    dtypes=("float32", "float16", "bfloat16"),
    sentence="In bfloat16 the relative error of PyTorch's eager attention goes from {small:.1e} to {large:.1e} as the "
    "logits grow from a standard deviation of 0.25 to 16, and that of its fused one from {fused:.1e} to "
    "{fused_large:.1e}.",
    numbers={
        "small": measured(ERROR, dtype="bfloat16", axis="logit_std", value=0.25, backend="torch_eager"),
        "large": measured(ERROR, dtype="bfloat16", axis="logit_std", value=16.0, backend="torch_eager"),
        "fused": measured(ERROR, dtype="bfloat16", axis="logit_std", value=0.25, backend="torch_sdpa"),
        "fused_large": measured(ERROR, dtype="bfloat16", axis="logit_std", value=16.0, backend="torch_sdpa"),
    },
    lesson="A tolerance can be derived, up to the factor that an estimate needs, here a quarter. In 16 bits "
    "errors hardly grow from 256 keys on. With the standard deviation of the logits they grow where scores are stored "
    "in 16 bits, and not where weights are: a kernel that keeps its scores in float32 is the safer one for large "
    "logits.",
    charts=(
        Chart(
            title="Large logits hurt kernels that store scores",
            x="value",
            x_label="standard deviation of the logits, in bfloat16",
            y="relative error",
            log_y=True,
            lines={name: of(ERROR, dtype="bfloat16", axis="logit_std", precision=name) for name in CLASSES},
        ),
    ),
)
