"""Rounding errors of outputs and gradients against n, d_k and the size of the logits.

The gradients' budget (`attnlab.theory.gradient_budgets`) has its sums in order too: it is a bound in every format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.error_budget import CLASSES
from attnlab.figures import BLACK, entitle, new_figure, powers_of_two
from attnlab.lab import panels
from attnlab.lab.finding import STANDARD_ERRORS, Experiment, Finding, Row, Shown, Where, pick
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator
from attnlab.lab.theory import GRADIENT_CLASSES, ErrorBudget, classify, gradient_budgets, precision_classes
from attnlab.workload.inputs import Inputs
from attnlab.workload.vocabulary import round_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBER_FORMATS = ("float32", "float16", "bfloat16")
#: what is varied, what the others are meanwhile, its axis and its title
AXES: Mapping[str, tuple[tuple[float, ...], float, str, str]] = {
    "keys": ((16, 64, 256, 1024, 4096), 512, "keys n", "more keys"),
    "head_dim": ((4, 16, 64, 256), 64, "head dimension d_k", "wider heads"),
    "logit_std": ((0.25, 1.0, 2.0, 4.0, 8.0, 16.0), 1.0, "standard deviation of the logits", "larger logits"),
}
_HEADS, _QUERIES = 2, 48
#: formats in which the budget predicts, and by what part of itself it may be off where a mantissa is not log-uniform
PREDICTED, _OFF = ("float16", "bfloat16"), 0.25
ERROR, OF_GRADIENT = "relative error", "relative error of a gradient"
OF_WORST = "largest error / worst-case bound"
BOUND, WORST = "bound: sums in order, whatever is rounded", "bound: worst case"
_DASHES = {**dict(zip(CLASSES, ("-", "--", "-."), strict=True)), BOUND: (0, (6, 2)), WORST: ":"}
#: the same for gradients
GRADIENT_FORMATS = ("float32", "bfloat16")
GRADIENT_AXES: Mapping[str, tuple[float, ...]] = {"keys": (32, 128, 512), "logit_std": (1.0, 4.0, 8.0)}
_GRADIENT_USUAL: Mapping[str, float] = {"keys": 128, "logit_std": 1.0}
_GRADIENT_QUERIES, _GRADIENT_DIM = 32, 32


@dataclass(frozen=True)
class _Point:
    """One set of inputs for all backends, so that they differ by their own roundings alone, and its error budgets."""

    where: Where
    arrays: Sequence[NDArray[Any]]
    scale: float
    budgets: Mapping[str, ErrorBudget]

    @classmethod
    def on(cls, dtype: str, axis: str, value: float, seed: int) -> _Point:
        """The point `value` of `axis` in `dtype`: q, k, v as cast, the same for every backend."""
        size = {**{name: usual for name, (_, usual, *_) in AXES.items()}, axis: value}
        keys, dim = int(size["keys"]), int(size["head_dim"])
        rng = generator(seed, 1200, list(AXES).index(axis), round(16 * value))
        arrays = [
            round_to(factor * rng.standard_normal((1, _HEADS, n, dim)), dtype)
            for n, factor in ((_QUERIES, size["logit_std"]), (keys, 1.0), (keys, 1.0))
        ]
        scale = 1 / math.sqrt(dim)
        # where the scale is a power of two it rounds nothing, and scores are rounded once
        asked = {"scale": scale, "score_roundings": 1 if math.frexp(scale)[0] == 0.5 else 2}
        budgets = precision_classes(*arrays, dtype=dtype, worst_case=True, **asked)
        return cls({"dtype": dtype, "axis": axis, "value": value}, arrays, scale, budgets)

    @property
    def predictions(self) -> Mapping[str, tuple[float, float]]:
        """Relative error by precision class and its standard error, with the rounding of the output as it is.

        That one is known: the exact output, rounded. It is below its budget where one weight is near 1, because the
        output is then nearly a value, which the format already holds.
        """
        exact, found = self.loosest.output, {}
        rounded = round_to(exact, str(self.where["dtype"])).astype(np.float64) - exact
        share = float(np.linalg.norm(rounded)) / float(np.linalg.norm(exact))
        for name, budget in self.budgets.items():
            others = budget.restricted_to(*(source for source in budget.variances if source != "output"))
            relative = math.hypot(others.relative, share)
            found[name] = relative, relative * budget.relative_scatter
        return found

    @property
    def loosest(self) -> ErrorBudget:
        """The budget of the least precise class."""
        return list(self.budgets.values())[-1]


def measure(survey: Survey) -> None:
    """Relative Frobenius error of each backend in three formats, along three axes, against its budget.

    In 16 bits a row is held against the nearest of the three precision classes, whose name is in `where`, and may be
    off on either side by five standard errors or a quarter; in float32 the error must be within the budget of a class.
    A second row holds the largest error over its worst-case bound, which may not exceed 1. Then the gradients.
    """
    for dtype in NUMBER_FORMATS:
        for axis, (points, *_) in AXES.items():
            for value in points:
                point = _Point.on(dtype, axis, value, survey.seed)
                survey.each(partial(_judged, point=point), dtype=dtype)
    for dtype in GRADIENT_FORMATS:
        asked = [(where, one, gradient_budgets(one)) for where, one in gradient_problems(dtype, survey.seed)]
        survey.each(partial(_gradients, asked=asked), dtype=dtype)


def budget_lines(dtype: str, axis: str, seed: int) -> dict[str, list[float]]:
    """Predicted errors by precision class along one axis, and the worst-case bound, computed anew from the seed.

    Where nothing is predicted one line stands for all three classes: they bound the error alike.
    """
    lines: dict[str, list[float]] = {}
    for value in AXES[axis][0]:
        point = _Point.on(dtype, axis, value, seed)
        bound = np.linalg.norm(np.asarray(point.loosest.worst_case)) / np.linalg.norm(point.loosest.output)
        predicted = {name: relative for name, (relative, _) in point.predictions.items()}
        found = predicted if dtype in PREDICTED else {BOUND: point.loosest.relative}
        for name, one in {**found, WORST: float(bound)}.items():
            lines.setdefault(name, []).append(one)
    return lines


def _judged(one: OpenBackend, seed: int, point: _Point) -> Iterator[Row]:
    loosest = point.loosest
    output = one.attend(*point.arrays, causal=False, scale=point.scale)
    error = np.abs(output.astype(np.float64) - loosest.output)
    relative = float(np.linalg.norm(error) / np.linalg.norm(loosest.output))
    if point.where["dtype"] in PREDICTED:
        # the nearest class
        known = point.predictions
        name = min(known, key=lambda name: abs(math.log(relative / known[name][0])) if relative > 0 else 0.0)
        expected, scatter = known[name]
        room = {"standard_error": scatter, "slack": _OFF * expected}
        yield one.row(ERROR, {**point.where, "precision": name}, expected, relative, **room)
    else:
        # the tightest budget that covers it
        found = classify(relative, point.budgets) if math.isfinite(relative) else None
        budget = point.budgets[found or list(point.budgets)[-1]]
        where = {"backend": one.name, **point.where, "precision": found or "outside every budget"}
        scatter = budget.relative * budget.relative_scatter
        yield Row(ERROR, where, budget.relative, relative, scatter, found is not None, "≤")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error > 0, error / np.asarray(loosest.worst_case), 0.0)
    yield one.row(OF_WORST, point.where, 1.0, share.max(), relation="≤")


def gradient_problems(dtype: str, seed: int) -> Iterator[tuple[Where, Inputs]]:
    """The questions in `dtype`, the same for every backend: where they stand, and their arrays as cast."""
    for axis, points in GRADIENT_AXES.items():
        for value in points:
            size = {**_GRADIENT_USUAL, axis: value}
            rng = generator(seed, 1250, list(GRADIENT_AXES).index(axis), round(value))
            keys = int(size["keys"])
            shapes = (
                (1, _HEADS, n, _GRADIENT_DIM) for n in (_GRADIENT_QUERIES, keys, keys, _GRADIENT_QUERIES)
            )
            arrays = [rng.standard_normal(shape) for shape in shapes]
            arrays[0] *= size["logit_std"]
            q, k, v, g = (round_to(array, dtype) for array in arrays)
            problem = Inputs.of(q, k, v, scale=1 / math.sqrt(_GRADIENT_DIM), output_gradient=g, dtype=dtype)
            yield {"dtype": dtype, "axis": axis, "value": value}, problem


def _gradients(
    one: OpenBackend, seed: int, asked: Sequence[tuple[Where, Inputs, Sequence[ErrorBudget]]]
) -> Iterator[Row]:
    """The relative error of each gradient against the tightest class that covers it, or the loosest.

    Give or take five errors or a quarter; nothing without automatic differentiation.
    """
    for where, problem, budgets in asked:
        found = one.gradients(problem)
        if found is None:
            return
        for of, budget in zip(("query", "key", "value"), budgets, strict=True):
            error = np.asarray(found[f"{of} gradient"], dtype=np.float64) - budget.output
            relative = float(np.linalg.norm(error) / np.linalg.norm(budget.output))
            for name, sources in GRADIENT_CLASSES.items():
                covering = budget.restricted_to(*sources)
                scatter = covering.relative * covering.relative_scatter
                room = {"standard_error": scatter, "slack": _OFF * covering.relative, "relation": "≤"}
                at = {"of": of, **where, "precision": name}
                row = one.row(OF_GRADIENT, at, covering.relative, relative, **room)
                if row.passed:
                    break
            yield row


def conclusion(rows: Sequence[Row]) -> str:
    """What each backend rounds inside, what large logits cost, and how near predictions are and how far bounds."""
    errors, gradients = pick(rows, ERROR), pick(rows, OF_GRADIENT, axis="keys", dtype="bfloat16")
    if not errors:
        return "No backend could be measured."
    # long rows of moderate logits, where the budgets of the classes lie furthest apart
    inside: dict[str, set[str]] = {}
    for row in pick(errors, axis="keys", value=AXES["keys"][0][-1], dtype=PREDICTED):
        inside.setdefault(str(row.where["precision"]), set()).add(str(row.where["backend"]))
    classes = "; ".join(f"{', '.join(sorted(inside[name]))}: {name}" for name in sorted(inside))
    told = [
        "At logits of order 1 and 64 keys or more errors in 16 bits tell what is stored in them "
        f"({classes or 'none measured'})."
    ]
    low, high = AXES["logit_std"][0][0], AXES["logit_std"][0][-1]
    spans = []
    for backend in ("torch_eager", "torch_sdpa"):
        mine = pick(errors, dtype="bfloat16", axis="logit_std", backend=backend)
        of = {float(row.where["value"]): row.measured for row in mine}
        if {low, high} <= of.keys():
            spans.append(f"from {of[low]:.1e} to {of[high]:.1e} with {backend}")
    if spans:
        told.append(
            f"As the standard deviation of the logits grows from {low:g} to {high:g}, the relative error in bfloat16 "
            f"goes {' and '.join(spans)}."
        )
    two_sided = [row for row in errors if row.relation == "=" and row.passed]
    if two_sided:
        near = sum(
            abs(row.measured - row.predicted) <= STANDARD_ERRORS * row.standard_error for row in two_sided
        )
        most = max(abs(row.measured / row.predicted - 1) for row in two_sided)
        told.append(
            f"Predictions in 16 bits: {near} of {len(two_sided)} errors lie within five standard errors, all within "
            f"{math.ceil(100 * most)} %."
        )
    below = [row.measured / row.predicted for row in errors if row.relation == "≤" and row.passed]
    if below:
        told.append(f"The bound in float32: errors are {min(below):.2f} to {max(below):.2f} of it.")
    if gradients:
        few, many = GRADIENT_AXES["keys"][0], GRADIENT_AXES["keys"][-1]
        found = {
            (of, n): [row.measured for row in pick(gradients, of=of, value=n)]
            for of in ("query", "key", "value")
            for n in (few, many)
        }
        span = {at: f"{min(some):.1e} to {max(some):.1e}" for at, some in found.items()}
        listed = ", ".join(f"{of} {span[of, few]} and {span[of, many]}" for of in ("query", "key", "value"))
        most = max(row.measured / row.predicted for row in gradients)
        told.append(
            f"Gradients in bfloat16: relative errors at n = {few:g} and {many:g}, by backend, are {listed}; along n "
            f"none is more than {most:.2f} times a budget of what a backward pass rounds."
        )
    allowed = "their budgets within the allowance (a quarter, or five standard errors)"
    tightest = max(row.measured for row in pick(rows, OF_WORST))
    told.append(f"No error of an output exceeds {math.ceil(100 * tightest)} % of its worst-case bound.")
    return " ".join([*told, f"{agreement(rows, allowed)}."])


def draw(finding: Finding) -> Figure:
    """Relative errors in three formats along three axes, and the budgets' lines."""
    figure, axes = new_figure(3, len(NUMBER_FORMATS), width=14.0, height=10.5)
    errors = pick(finding.rows, ERROR)
    drawn: dict[str, Any] = {}
    for index, panel in enumerate(axes):
        dtype, (axis, (points, _, label, change)) = NUMBER_FORMATS[index // 3], list(AXES.items())[index % 3]
        for name, line in budget_lines(dtype, axis, int(finding.facts["seed"])).items():
            look: dict[str, Any] = {"linestyle": _DASHES[name], "color": BLACK, "linewidth": 1.1}
            (curve,) = panel.plot(points, line, **look)
            if index in (1, 4):
                drawn[f"predicted: {name}" if name in CLASSES else name] = curve
        panels.by_backend(panel, pick(errors, dtype=dtype, axis=axis), "value", named=index == 2)
        panel.set_yscale("log")
        powers_of_two(panel, points)
        entitle(panel, f"{dtype}: {change}", label, "relative error" if axis == "keys" else "")
    if errors:
        outside: dict[str, Any] = {"fontsize": 9, "frameon": False}
        figure.legend(drawn.values(), drawn, loc="outside upper center", ncols=5, **outside)
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=7, **outside)
    return figure


EXPERIMENT = Experiment(
    title="The growth of the error",
    question="How does the rounding error grow with n, d_k and the size of the logits?",
    theory="A stored number is off by 0.42 u in the root mean square, u being 2⁻²⁴ in float32, 2⁻¹¹ in float16 and "
    "2⁻⁸ in bfloat16. *In 16 bits* nothing else counts, and three errors can be predicted: that of storing the output "
    "alone (full precision inside), the weights too, or the scores too. A measured error must lie within five "
    "standard errors, or a quarter, of the nearest one; the quarter, because roundings of similar mantissas are from "
    "1/1.47 to 1.36 times the average. At logits of order 1 and 64 keys or more all three are told apart. "
    "Smaller scores cost nothing; with larger ones rounded scores stand out ever more, and kernels that round the "
    "exponentials, of which the largest is 1, before these are divided by their sum come down to full precision, where "
    "those that round the weights themselves do not. "
    "*In float32* the roundings of arithmetic count several times more. The budget takes sums in order; others stay "
    "below it, so that it is a bound. *The worst case*, in which all roundings conspire, bounds every element and "
    "grows with n.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Relative error ‖output − truth‖/‖truth‖ of each backend in three formats, against the number "
    "of keys, the head dimension and the size of the logits; the truth is float64 on the inputs as cast. In "
    "16 bits three lines are predictions; in float32 one line bounds all classes. The naive loop, "
    "where it is shown, computes in float64 and rounds once.",
    lesson="A tolerance can be derived, up to the factor that an estimate needs, here a quarter. In 16 bits errors "
    "hardly grow from 256 keys on, nor with d_k. With the standard deviation of the logits they grow where scores are "
    "stored in 16 bits, and not where weights are: a kernel that keeps its scores in float32 is the safer one for "
    "large logits.",
    shown=(
        Shown(
            "relative error", {"axis": "keys", "value": 4096, "dtype": ("float16", "bfloat16")}, every=True
        ),
        Shown("relative error", {"axis": "logit_std", "value": 16.0, "dtype": "bfloat16"}, every=True),
        Shown(
            "relative error of a gradient", {"axis": "keys", "value": 512, "dtype": "bfloat16"}, every=True
        ),
    ),
)
