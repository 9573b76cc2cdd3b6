"""Where each backend's softmax overflows or underflows, in each number format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.figures import BLACK, CYCLE, GREY, RED, entitle, legend, new_figure
from attnlab.lab.finding import Experiment, Finding, Row, Shown, pick
from attnlab.lab.observables import Attend
from attnlab.lab.survey import OpenBackend, Survey, agreement
from attnlab.lab.theory import float_format, overflow_threshold, underflow_threshold
from attnlab.workload.vocabulary import DTYPES, carrier, round_to

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: keys of a row, of which one lies below all others; two leave vectorised code to its scalar remainder
KEYS = (2, 64)
#: keys of a row of equal logits, for the softmax that subtracts nothing
SUMMED_KEYS = (1, 1024)
#: a polynomial exponential may stop this far before the last normal number
_FLUSH_SLACK = 0.5
KEPT, FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT = "kept", "exponential flushed", "weight flushed"
GAP, LIMIT = "gap at which a weight becomes 0", "unshifted softmax overflows above"
TWO_EQUAL = "weight of two equal logits at twice ln(max)"


def measure(survey: Survey) -> None:
    """The gap at which a weight becomes 0, and whether logits beyond ln(max) survive, by backend and format.

    A row passes within one spacing of the format of the exact threshold, subnormal numbers kept, or within half a unit
    of one of those at which exponentials or weights are flushed (said in `where`). Nothing is random here.
    """
    for dtype in ("float16", "float32", "float64"):
        survey.rows += textbook_overflow(dtype)
    for dtype in DTYPES:
        survey.each(partial(thresholds, dtype=dtype), dtype=dtype)
    large: dict[str, list[str]] = {}
    for one in survey.opened("float16"):
        large.setdefault(_fate_of_large_products(one.attend), []).append(one.name)
    if large:
        survey.facts["outputs where q·k is beyond 65504 in float16"] = "; ".join(
            f"{fate} through {', '.join(names)}" for fate, names in large.items()
        )


def last_before(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x at which `holds` is still true, by bisection between `low`, where it is, and `high`.

    Infinite where it holds at `high` too, `low` where it does not even hold there.
    """
    if holds(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def spacing(dtype: str, at: float) -> float:
    """Distance between neighbouring numbers of `dtype` around `at`."""
    return float(2.0 ** (math.floor(math.log2(at)) + 1 - float_format(dtype).precision))


def textbook_overflow(dtype: str) -> Iterator[Row]:
    """Where exp(s)/Σexp(s) of n equal logits fails, and with what.

    The sum overflows first, to weights of 0; then each exponential does, to NaN, as where all are 0.
    """
    limit, textbook = overflow_threshold(dtype), {"backend": "textbook exp(s)/Σexp(s)", "dtype": dtype}

    def weights(logit: float, keys: int) -> NDArray[Any]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            exponentials = np.exp(np.full(keys, logit).astype(dtype))
            return np.asarray(exponentials / exponentials.sum())

    for keys in SUMMED_KEYS:
        where, expected = {**textbook, "keys": keys}, limit - math.log(keys)
        found = last_before(lambda logit, keys=keys: bool((weights(logit, keys) > 0).all()), 1.0, 4 * limit)  # type: ignore[misc]
        room = spacing(dtype, expected) + 2 * float_format(dtype).unit_roundoff
        yield Row.compare(LIMIT, where, expected, found, slack=room)
    low = -underflow_threshold(dtype) - 1
    for logit, zero, nan in ((limit - math.log(keys) / 2, 1.0, 0.0), (limit + 1, 0.0, 1.0), (low, 0.0, 1.0)):
        failed, where = weights(logit, keys), {**where, "logit": logit}
        yield Row.compare("share of unshifted weights that are 0", where, zero, np.mean(failed == 0))
        yield Row.compare("share of unshifted weights that are NaN", where, nan, np.mean(np.isnan(failed)))


def thresholds(one: OpenBackend, seed: int, dtype: str) -> Iterator[Row]:
    """The gaps at which a weight becomes 0, and what becomes of two equal logits at twice ln(max)."""
    for keys in KEYS:
        found = last_before(partial(_alive, one.attend, dtype, keys), 1.0, 2000.0)
        gaps = vanishing_gaps(dtype, keys)
        subnormals, slack = KEPT, spacing(dtype, gaps[KEPT])
        if abs(found - gaps[KEPT]) > slack:
            others = (FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT)
            subnormals = min(others, key=lambda name: abs(found - gaps[name]))
            slack = max(slack, _FLUSH_SLACK)
        where = {"dtype": dtype, "keys": keys, "subnormals": subnormals}
        yield one.row(GAP, where, gaps[subnormals], found, slack=slack)
    # the scale makes the logit, not the product
    logit = 2 * overflow_threshold(dtype)
    q, k, v = (np.ones((1, 1, n, 8), carrier(dtype)) for n in (1, 2, 2))
    v[0, 0, 1] = 0
    weight = float(one.attend(q, k, v, causal=False, scale=logit / 8)[0, 0, 0, 0])
    room = 2 * float_format(dtype).unit_roundoff
    yield one.row(TWO_EQUAL, {"dtype": dtype, "logit": logit}, 0.5, weight, slack=room)


def vanishing_gaps(dtype: str, keys: int) -> dict[str, float]:
    """The gap at which the lowest weight of `keys` becomes 0, by what a kernel does with subnormal numbers.

    The other keys share the weight, so that the lowest one is e^{−gap}/(n − 1). A kernel that flushes the weight loses
    it where this is below the smallest normal number; one that flushes the exponential, where e^{−gap} is.
    """
    shared, flushed = math.log(keys - 1), -math.log(float_format(dtype).smallest_normal)
    return {
        KEPT: underflow_threshold(dtype) - shared,
        FLUSHED_EXPONENTIAL: flushed,
        FLUSHED_WEIGHT: flushed - shared,
    }


def _alive(attend: Attend, dtype: str, keys: int, gap: float) -> bool:
    """Whether the one key of `keys` whose logit lies `gap` below all others, which are 0, has a weight."""
    q, k, v = (np.zeros((1, 1, n, keys), carrier(dtype)) for n in (1, keys, keys))
    q[..., 0], k[0, 0, -1, 0], v[0, 0, -1] = 1, round_to(np.array([-gap]), dtype)[0], 1
    return bool(attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0] > 0)


def _fate_of_large_products(attend: Attend) -> str:
    """What becomes of float16 logits of moderate size where q·k itself is beyond float16's 65504."""
    q, k = np.full((1, 1, 1, 8), 128.0, np.float16), np.full((1, 1, 2, 8), 128.0, np.float16)
    try:
        output = attend(q, k, np.ones_like(k), causal=False, scale=1e-4)
    except Exception as fault:  # other people's code may raise anything
        return type(fault).__name__
    return "finite" if np.isfinite(output).all() else "NaN"


def conclusion(rows: Sequence[Row]) -> str:
    """Where the textbook's softmax overflows, and what the backends do there."""
    one, many = (
        ", ".join(f"{row.measured:.2f} in {row.where['dtype']}" for row in pick(rows, LIMIT, keys=keys))
        for keys in SUMMED_KEYS
    )
    flushing: dict[str, dict[str, None]] = {}
    for row in pick(rows, subnormals=(FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT)):
        flushing.setdefault(str(row.where["backend"]), {})[str(row.where["dtype"])] = None
    told = "; ".join(f"{name} in {', '.join(flushing[name])}" for name in sorted(flushing))
    flush = f" Subnormal numbers are flushed to zero at n = {KEYS[0]} or {KEYS[1]} ({told})." if told else ""
    right = all(row.passed for row in pick(rows, TWO_EQUAL))
    return (
        f"A softmax that does not subtract its largest logit returns NaN above {one}; over {SUMMED_KEYS[-1]} equal "
        f"logits its sum overflows and all its weights are 0 already above {many}. At twice ln(max) the backends "
        f"return {'right weights' if right else 'not always right weights'}.{flush} "
        f"{agreement(rows, 'the thresholds of the formats')}."
    )


def draw(finding: Finding) -> Figure:
    """The fall of a logit at which its weight becomes 0, by format and backend."""
    figure, panels = new_figure(4, 1, width=15.0, height=4.5, sharey=True)
    rows = pick(finding.rows, GAP)
    names = sorted({str(row.where["backend"]) for row in rows})
    for panel, dtype in zip(panels, DTYPES, strict=True):
        for keys, marker, colour, lift in zip(KEYS, ("o", "s"), CYCLE, (0.14, -0.14), strict=False):
            mine, gaps = pick(rows, dtype=dtype, keys=keys), vanishing_gaps(dtype, keys)
            heights = [names.index(str(row.where["backend"])) + lift for row in mine]
            panel.plot([row.measured for row in mine], heights, marker, color=colour, label=f"n = {keys}")
            # broad and pale: in bfloat16 the one of 64 keys lies under the line where e^x overflows
            panel.axvline(gaps[KEPT], color=colour, linewidth=4, alpha=0.35, zorder=1)
        panel.axvline(gaps[FLUSHED_EXPONENTIAL], color=GREY, linestyle=":", linewidth=1.6)
        panel.axvline(gaps[FLUSHED_WEIGHT], color=colour, linestyle=":", linewidth=1.6)
        panel.axvline(overflow_threshold(dtype), color=RED, linestyle="--", linewidth=1.2)
        entitle(panel, dtype, "gap Δ below the other logits", "")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(-0.6, len(names) - 0.2)
    figure.suptitle("The gap at which a key loses all its weight", fontsize=13, fontweight="bold")
    for label, look in (
        ("predicted, subnormals kept", {"color": BLACK, "linewidth": 4, "alpha": 0.35}),
        ("predicted, exponential flushed", {"color": GREY, "linestyle": ":"}),
        (f"predicted, weight flushed, n = {KEYS[1]}", {"color": CYCLE[1], "linestyle": ":"}),
        ("e^x overflows: ln(max)", {"color": RED, "linestyle": "--"}),
    ):
        panels[-1].plot([], [], label=label, **look)
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    legend(panels[-1], fontsize=8.5, title="a weight becomes 0 at", title_fontsize=8.5, **beside)
    return figure


EXPERIMENT = Experiment(
    title="Overflow and underflow",
    question="Which backend overflows or underflows, in which format, at which logit?",
    theory="e^x overflows above ln(max) of its format, and the sum of n of them, for equal logits, above "
    "ln(max) − ln n: exp(s)/Σ exp(s) then gives 1/∞ = 0 for every key, above ln(max) ∞/∞ and, where all logits are "
    "very negative (−110 in float32), 0/0, a NaN. A softmax that first subtracts the row's largest logit has a "
    "largest exponent of 0 and meets neither, unless n itself exceeds the largest number of its sum's format, 65,504 "
    "in float16. A single weight still underflows: a key whose logit lies Δ below n − "
    "1 equal ones has the weight e^{−Δ}/(n − 1), which is rounded to 0 below half the smallest subnormal number. A "
    "kernel that flushes subnormal numbers loses it earlier: as soon as e^{−Δ} is below about the smallest normal one, "
    "where it flushes the exponential, or the weight itself, where it flushes that.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="A row of n keys, of which one lies Δ below all others: the Δ at which its weight becomes 0, "
    "for each format and backend. Broad lines are predicted for subnormal numbers kept, dotted ones for "
    "flushed; dashed ones show where e^x itself overflows. Two keys are left to the scalar remainder of "
    "vectorised code and 64 are not, so that one kernel may do both. Without a mark: not asked in that format; "
    "where the list below does not say why, the backend has not the format.",
    lesson="Subtract the largest logit; over 1024 equal logits exp(s)/Σ exp(s) fails in float16 above a logit "
    "of 4.16, with zeros instead of an error, and with NaN below −17.33. Keep scores of float16 inputs in float32: "
    "q·k can pass 65504 while the scaled logit is harmless, and then no subtraction helps.",
    shown=(
        Shown("unshifted softmax overflows above"),
        Shown("share of unshifted weights that are 0"),
        Shown("gap at which a weight becomes 0"),
    ),
)
