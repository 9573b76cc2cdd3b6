"""How does the error of each backend grow with n, d_k and the logits, and is it what its roundings predict?

The truth is float64 on the inputs as cast. The prediction is the error budget of what a backend may round (its
output, its weights, its scores), and the bound that no correct implementation passes. So the error also says which
precision a backend keeps inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import round_to
from attnlab.figures.drawing import BLACK, entitle, new_figure, powers_of_two
from attnlab.numerics.finding import Finding, Row, Where, pick
from attnlab.numerics.panels import by_backend
from attnlab.numerics.survey import OpenBackend, Survey, agreement, generator
from attnlab.theory import ErrorBudget, classify, precision_classes

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
    def loosest(self) -> ErrorBudget:
        """The budget of the least precise class."""
        return list(self.budgets.values())[-1]


def measure(survey: Survey) -> None:
    """Relative Frobenius error of each backend in three formats, along three axes, against its budget.

    A row passes when the error is covered by one of the three precision classes, whose name is in `where`; its
    prediction is that class's budget. A second row holds the largest error over its worst-case bound, which may not
    exceed 1.
    """
    for dtype in NUMBER_FORMATS:
        for axis, values in AXES.items():
            for value in values:
                point = _Point.on(dtype, axis, value, survey.seed)
                survey.each(partial(_judged, point=point), dtype=dtype)


def budget_lines(dtype: str, axis: str, seed: int) -> dict[str, list[float]]:
    """Relative budgets by precision class along one axis, and the worst-case bound, computed anew from the seed."""
    lines: dict[str, list[float]] = {}
    for value in AXES[axis]:
        point = _Point.on(dtype, axis, value, seed)
        for name, budget in point.budgets.items():
            lines.setdefault(name, []).append(budget.relative)
        bound = np.linalg.norm(np.asarray(point.loosest.worst_case)) / np.linalg.norm(point.loosest.output)
        lines.setdefault("worst case", []).append(float(bound))
    return lines


def _judged(one: OpenBackend, seed: int, point: _Point) -> Iterator[Row]:
    loosest, budgets = point.loosest, point.budgets
    where: Where = {"backend": one.name, **point.where}
    output = one.attend(point.q, point.k, point.v, causal=False, scale=point.scale)
    error = np.abs(output.astype(np.float64) - loosest.output)
    relative = float(np.linalg.norm(error) / np.linalg.norm(loosest.output))
    name = classify(relative, budgets) if math.isfinite(relative) else None
    budget = budgets[name] if name else loosest
    yield Row(
        "relative error",
        {**where, "precision": name or "outside every budget"},
        predicted=budget.relative,
        measured=relative,
        standard_error=budget.relative * budget.relative_scatter,
        passed=name is not None,
        relation="≤",
    )
    assert loosest.worst_case is not None  # it was asked for
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error > 0, error / loosest.worst_case, 0.0)
    yield Row.compare("largest error / worst-case bound", where, 1.0, share.max(), relation="≤")


def conclusion(rows: Sequence[Row]) -> str:
    """What each backend rounds inside, and what large logits cost."""
    errors = pick(rows, "relative error")
    if not errors:
        return "No backend could be measured."

    # long rows of moderate logits, where the budgets of the classes lie furthest apart
    usual = pick(errors, axis="keys", value=AXES["keys"][-1])
    low = {"float16", "bfloat16"}  # the formats in which the classes differ
    found: dict[str, set[str]] = {}
    for row in usual:
        if row.where["dtype"] in low:
            found.setdefault(str(row.where["precision"]), set()).add(str(row.where["backend"]))
    classes = "; ".join(f"{', '.join(sorted(found[name]))}: {name}" for name in sorted(found))
    tightest = max(row.measured for row in rows if row.quantity.startswith("largest error"))
    return (
        f"Errors in 16 bits tell what is rounded inside ({classes or 'none measured'}). "
        f"{_against_size(errors)}No error exceeds {100 * tightest:.0f} % of its worst-case bound. "
        f"{agreement(rows, 'their budgets')}."
    )


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
        for (name, line), style in zip(lines.items(), ("-", "--", "-.", ":"), strict=True):
            label = name if index == 1 else None
            panel.plot(AXES[axis], line, style, color=BLACK, linewidth=1.1, label=label)
        by_backend(panel, pick(errors, dtype=dtype, axis=axis), "value", named=index == 2)
        panel.set_yscale("log")
        powers_of_two(panel, AXES[axis])
        label, change = words[axis]
        entitle(panel, f"{dtype}: {change}", label, "relative error" if axis == "keys" else "")
    if errors:
        look: dict[str, Any] = {"fontsize": 9, "frameon": False}
        figure.legend(*panels[1].get_legend_handles_labels(), loc="outside upper center", ncols=4, **look)
        figure.legend(*panels[2].get_legend_handles_labels(), loc="outside lower center", ncols=7, **look)
    return figure
