"""How does the error of each backend grow with n, d_k and the logits, and is it what its roundings predict?

The truth is float64 on the inputs as cast. In 16 bits the roundings to the format outweigh all others, so that the
error of what rounds its output, its weights or its scores is *predicted*, on both sides. In float32 they do not, and
the budget of sums taken in order is a *bound*, which shorter sums stay below. In either, no correct implementation
passes the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments import float8, gradient_growth
from attnlab.experiments.finding import STANDARD_ERRORS, Finding, Row, Where, pick
from attnlab.experiments.panels import by_backend
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import BLACK, entitle, new_figure, powers_of_two
from attnlab.problem.dtypes import round_to
from attnlab.theory import ErrorBudget, classify, precision_classes
from attnlab.theory.error_budget import CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBER_FORMATS = ("float32", "float16", "bfloat16")
#: what is varied, and what the others are meanwhile
AXES: Mapping[str, tuple[float, ...]] = {
    "keys": (16, 64, 256, 1024, 4096),
    "head_dim": (4, 16, 64, 256),
    "logit_std": (0.25, 1.0, 2.0, 4.0, 8.0, 16.0),
}
_USUAL: Mapping[str, float] = {"keys": 512, "head_dim": 64, "logit_std": 1.0}
_HEADS, _QUERIES = 2, 48
#: formats in which the budget predicts, and by what part of itself it may be off where a mantissa is not log-uniform
PREDICTED, _OFF = ("float16", "bfloat16"), 0.25


@dataclass(frozen=True)
class _Point:
    """One set of inputs for all backends, so that they differ by their own roundings alone, and its error budgets."""

    where: Mapping[str, str | float]
    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    scale: float
    budgets: Mapping[str, ErrorBudget]

    @classmethod
    def on(cls, dtype: str, axis: str, value: float, seed: int) -> _Point:
        """The point `value` of `axis` in `dtype`: q, k, v as cast, the same for every backend."""
        size = {**_USUAL, axis: value}
        keys, dim = int(size["keys"]), int(size["head_dim"])
        rng = generator(seed, 1200, list(AXES).index(axis), round(16 * value))
        q, k, v = (
            round_to(factor * rng.standard_normal((1, _HEADS, n, dim)), dtype)
            for n, factor in ((_QUERIES, size["logit_std"]), (keys, 1.0), (keys, 1.0))
        )
        scale = 1 / math.sqrt(dim)
        # where the scale is a power of two it rounds nothing, and scores are rounded once
        roundings = 1 if math.frexp(scale)[0] == 0.5 else 2
        budgets = precision_classes(
            q, k, v, dtype=dtype, scale=scale, worst_case=True, score_roundings=roundings
        )
        return cls({"dtype": dtype, "axis": axis, "value": value}, q, k, v, scale, budgets)

    @property
    def predictions(self) -> Mapping[str, tuple[float, float]]:
        """Relative error by precision class and its standard error, with the rounding of the output as it is.

        That one is known: the exact output, rounded. It is below its budget where one weight is near 1, because the
        output is then nearly a value, which the format already holds.
        """
        exact, dtype = self.loosest.output, str(self.where["dtype"])
        rounded = round_to(exact, dtype).astype(np.float64) - exact
        norm, found = float(np.linalg.norm(exact)), {}
        for name, budget in self.budgets.items():
            others = budget.restricted_to(*(source for source in budget.variances if source != "output"))
            relative = math.hypot(others.relative, float(np.linalg.norm(rounded)) / norm)
            found[name] = relative, relative * budget.relative_scatter
        return found

    @property
    def loosest(self) -> ErrorBudget:
        """The budget of the least precise class."""
        return list(self.budgets.values())[-1]


BOUND, WORST = "bound: sums in order, whatever is rounded", "bound: worst case"
_DASHES = {**dict(zip(CLASSES, ("-", "--", "-."), strict=True)), BOUND: (0, (6, 2)), WORST: ":"}


def measure(survey: Survey) -> None:
    """Relative Frobenius error of each backend in three formats, along three axes, against its budget.

    In 16 bits a row is held against the nearest of the three precision classes, whose name is in `where`, and may be
    off on either side by five standard errors or a quarter; in float32 the error must be within the budget of a class.
    A second row holds the largest error over its worst-case bound, which may not exceed 1. Then the gradients, and
    what 8 bits would do, which is emulated.
    """
    for dtype in NUMBER_FORMATS:
        for axis, values in AXES.items():
            for value in values:
                point = _Point.on(dtype, axis, value, survey.seed)
                survey.each(partial(_judged, point=point), dtype=dtype)
    for dtype in gradient_growth.FORMATS:
        asked = gradient_growth.with_budgets(dtype, survey.seed)
        through = partial(gradient_growth.through, dtype=dtype, asked=asked, folders=survey.folders)
        survey.each(through, dtype=dtype)
    survey.rows += float8.measured(survey.seed)


def budget_lines(dtype: str, axis: str, seed: int) -> dict[str, list[float]]:
    """Predicted errors by precision class along one axis, and the worst-case bound, computed anew from the seed.

    Where nothing is predicted one line stands for all three classes: they bound the error alike.
    """
    lines: dict[str, list[float]] = {}
    for value in AXES[axis]:
        point = _Point.on(dtype, axis, value, seed)
        if dtype in PREDICTED:
            for name, (relative, _) in point.predictions.items():
                lines.setdefault(name, []).append(relative)
        else:
            lines.setdefault(BOUND, []).append(point.loosest.relative)
        bound = np.linalg.norm(np.asarray(point.loosest.worst_case)) / np.linalg.norm(point.loosest.output)
        lines.setdefault(WORST, []).append(float(bound))
    return lines


def _judged(one: OpenBackend, seed: int, point: _Point) -> Iterator[Row]:
    loosest, budgets = point.loosest, point.budgets
    where: Where = {"backend": one.name, **point.where}
    output = one.attend(point.q, point.k, point.v, causal=False, scale=point.scale)
    error = np.abs(output.astype(np.float64) - loosest.output)
    relative = float(np.linalg.norm(error) / np.linalg.norm(loosest.output))
    if point.where["dtype"] in PREDICTED:
        yield _predicted(where, relative, point.predictions)
    else:
        yield _bounded(where, relative, budgets)
    assert loosest.worst_case is not None  # it was asked for
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error > 0, error / loosest.worst_case, 0.0)
    yield Row.compare("largest error / worst-case bound", where, 1.0, share.max(), relation="≤")


def _predicted(where: Where, relative: float, predictions: Mapping[str, tuple[float, float]]) -> Row:
    """The error against the nearest class, on both sides."""
    name = min(
        predictions, key=lambda one: abs(math.log(relative / predictions[one][0])) if relative > 0 else 0.0
    )
    expected, error = predictions[name]
    return Row.compare(
        "relative error",
        {**where, "precision": name},
        expected,
        relative,
        standard_error=error,
        slack=_OFF * expected,
    )


def _bounded(where: Where, relative: float, budgets: Mapping[str, ErrorBudget]) -> Row:
    """The error against the tightest budget that covers it, from above."""
    name = classify(relative, budgets) if math.isfinite(relative) else None
    budget = budgets[name or list(budgets)[-1]]
    return Row(
        "relative error",
        {**where, "precision": name or "outside every budget"},
        predicted=budget.relative,
        measured=relative,
        standard_error=budget.relative * budget.relative_scatter,
        passed=name is not None,
        relation="≤",
    )


def conclusion(rows: Sequence[Row]) -> str:
    """What each backend rounds inside, and what large logits cost."""
    errors = pick(rows, "relative error")
    if not errors:
        return "No backend could be measured."

    # long rows of moderate logits, where the budgets of the classes lie furthest apart
    usual = pick(errors, axis="keys", value=AXES["keys"][-1])
    found: dict[str, set[str]] = {}
    for row in usual:
        if row.where["dtype"] in PREDICTED:
            found.setdefault(str(row.where["precision"]), set()).add(str(row.where["backend"]))
    classes = "; ".join(f"{', '.join(sorted(found[name]))}: {name}" for name in sorted(found))
    tightest = max(row.measured for row in rows if row.quantity.startswith("largest error"))
    return (
        f"Errors in 16 bits tell what is rounded inside ({classes or 'none measured'}). "
        f"{_against_size(errors)}{_agreement_by_kind(errors)}{gradient_growth.told(rows)}{float8.told(rows)}"
        f"No error of an output exceeds {100 * tightest:.0f} % of its worst-case bound. "
        f"{agreement(rows, 'their budgets')}."
    )


def _agreement_by_kind(errors: Sequence[Row]) -> str:
    """How near the predictions are, and how far the bounds."""
    two_sided = [row for row in errors if row.relation == "=" and row.passed]
    below = [row.measured / row.predicted for row in errors if row.relation == "≤" and row.passed]
    told = ""
    if two_sided:
        near = sum(
            abs(row.measured - row.predicted) <= STANDARD_ERRORS * row.standard_error for row in two_sided
        )
        most = max(abs(row.measured / row.predicted - 1) for row in two_sided)
        told += (
            f"In 16 bits {near} of {len(two_sided)} errors lie within five standard errors of the prediction, all "
            f"within {100 * most:.0f} %. "
        )
    if below:
        told += f"In float32 the budget is a bound: errors are {min(below):.2f} to {max(below):.2f} of it. "
    return told


def _against_size(errors: Sequence[Row]) -> str:
    """What large logits cost in bfloat16, where the scores are rounded and where they are not."""
    low, high = AXES["logit_std"][0], AXES["logit_std"][-1]

    def span(backend: str) -> str:
        mine = pick(errors, dtype="bfloat16", axis="logit_std", backend=backend)
        of = {float(row.where["value"]): row.measured for row in mine}
        return f"from {of[low]:.1e} to {of[high]:.1e} with {backend}" if {low, high} <= of.keys() else ""

    spans = [text for text in map(span, ("torch_eager", "torch_sdpa")) if text]
    if not spans:
        return ""
    return (
        f"As the standard deviation of the logits grows from {low:g} to {high:g}, the error in bfloat16 goes "
        f"{' and '.join(spans)}. "
    )


def draw(finding: Finding) -> Figure:
    """Relative error along the three axes, a row of panels a format; budgets as lines, backends as points."""
    figure, panels = new_figure(3, len(NUMBER_FORMATS), width=14.0, height=10.5)
    errors = pick(finding.rows, "relative error")
    words = {
        "keys": ("keys n", "more keys"),
        "head_dim": ("head dimension d_k", "wider heads"),
        "logit_std": ("standard deviation of the logits", "larger logits"),
    }
    for index, panel in enumerate(panels):
        dtype, axis = NUMBER_FORMATS[index // 3], list(AXES)[index % 3]
        lines = budget_lines(dtype, axis, int(finding.facts["seed"]))
        for name, line in lines.items():
            panel.plot(
                AXES[axis],
                line,
                linestyle=_DASHES[name],
                color=BLACK,
                linewidth=1.1,
                label=name if index in (1, 4) else None,
            )
        by_backend(panel, pick(errors, dtype=dtype, axis=axis), "value", named=index == 2)
        panel.set_yscale("log")
        powers_of_two(panel, AXES[axis])
        label, change = words[axis]
        entitle(panel, f"{dtype}: {change}", label, "relative error" if axis == "keys" else "")
    if errors:
        look: dict[str, Any] = {"fontsize": 9, "frameon": False}
        drawn = {
            str(line.get_label()): line for panel in (panels[1], panels[4]) for line in panel.get_lines()
        }
        shown = [name for name in drawn if name in _DASHES]
        names = [f"predicted: {name}" if name in CLASSES else name for name in shown]
        handles = [drawn[name] for name in shown]
        figure.legend(handles, names, loc="outside upper center", ncols=5, **look)
        figure.legend(*panels[2].get_legend_handles_labels(), loc="outside lower center", ncols=7, **look)
    return figure
