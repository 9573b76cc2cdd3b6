"""At which logit does a softmax leave the range of its number format? Each backend and format against arithmetic.

e^x overflows above ln(max), and the sum of n such numbers above ln(max) − ln n: a softmax which does not subtract its
largest logit returns zeros beyond the second and NaN beyond the first. And a weight is rounded to 0 once its logit lies
further below the largest than −ln of half the smallest subnormal number; where a kernel flushes subnormal numbers to
zero, −ln of the smallest normal one, for its exponentials or for the weights, which are smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.black_box import Attend
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.survey import OpenBackend, Survey, agreement
from attnlab.figures import BLACK, CYCLE, GREY, RED, entitle, legend, new_figure
from attnlab.problem.dtypes import DTYPES, carrier, round_to
from attnlab.theory import float_format, overflow_threshold, underflow_threshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: keys of a row, of which one lies below all others; two leave vectorised code to its scalar remainder
KEYS = (2, 64)
#: keys of a row of equal logits, for the softmax that subtracts nothing
SUMMED_KEYS = (1, 1024)
#: a polynomial exponential may stop this far before the last normal number
_FLUSH_SLACK = 0.5


def measure(survey: Survey) -> None:
    """The gap at which a weight becomes 0, and whether logits beyond ln(max) survive, by backend and format.

    A row passes within one spacing of the format of the exact threshold, subnormal numbers kept, or within half a unit
    of one of those at which exponentials or weights are flushed (said in `where`). Nothing is random here.
    """
    survey.rows += [row for dtype in ("float16", "float32", "float64") for row in textbook_overflow(dtype)]
    for dtype in DTYPES:
        survey.each(partial(thresholds, dtype=dtype), dtype=dtype)
    large: dict[str, list[str]] = {}
    for one in survey.opened("float16"):
        large.setdefault(_fate_of_large_products(one.attend), []).append(one.name)
    if large:
        survey.facts["outputs where q·k is beyond 65504 in float16"] = "; ".join(
            f"{fate} through {', '.join(names)}" for fate, names in large.items()
        )


TEXTBOOK = "textbook exp(s)/Σexp(s)"


def unshifted_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """exp(s)/Σexp(s) without subtracting the largest logit first, so that it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(logits)
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def last_before(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x at which `holds` is still true, by bisection between `low`, where it is, and `high`.

    Infinite where it holds at `high` too. Raises ValueError where it does not even hold at `low`.
    """
    if not holds(low):
        raise ValueError(f"fails already at {low:g}")
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
    """Where exp(s)/Σexp(s) of n equal logits fails, and with what: the sum overflows first, to weights of 0."""

    def weights(keys: int, logit: float) -> NDArray[Any]:
        return unshifted_softmax(np.full(keys, logit).astype(dtype))

    def right(logit: float, keys: int) -> bool:
        return bool((weights(keys, logit) > 0).all())

    for keys in SUMMED_KEYS:
        expected = overflow_threshold(dtype) - math.log(keys)
        found = last_before(partial(right, keys=keys), 1.0, 4 * overflow_threshold(dtype))
        where: Where = {"backend": TEXTBOOK, "dtype": dtype, "keys": keys}
        room = spacing(dtype, expected) + 2 * float_format(dtype).unit_roundoff
        yield Row.compare("unshifted softmax overflows above", where, expected, found, slack=room)
    between = overflow_threshold(dtype) - math.log(keys) / 2
    for logit, zero, nan in ((between, 1.0, 0.0), (overflow_threshold(dtype) + 1, 0.0, 1.0)):
        failed, where = weights(keys, logit), {**where, "logit": logit}
        yield Row.compare("share of unshifted weights that are 0", where, zero, np.mean(failed == 0))
        yield Row.compare("share of unshifted weights that are NaN", where, nan, np.mean(np.isnan(failed)))


def thresholds(one: OpenBackend, seed: int, dtype: str) -> Iterator[Row]:
    """The gaps at which a weight becomes 0, and what becomes of two equal logits at twice ln(max)."""
    for keys in KEYS:
        yield _vanishing(one, dtype, keys)
    logit = 2 * overflow_threshold(dtype)
    quantity, weight = "weight of two equal logits at twice ln(max)", _two_equal(one.attend, dtype, logit)
    room = 2 * float_format(dtype).unit_roundoff
    yield one.row(quantity, {"dtype": dtype, "logit": logit}, 0.5, weight, slack=room)


def _vanishing(one: OpenBackend, dtype: str, keys: int) -> Row:
    """The gap at which the lowest weight of `keys` becomes 0."""

    def alive(gap: float) -> bool:
        return lowest_weight(one.attend, dtype, keys, gap) > 0

    found = last_before(alive, 1.0, 2000.0)
    gaps = vanishing_gaps(dtype, keys)
    step = spacing(dtype, gaps[KEPT])
    subnormals, slack = KEPT, step
    if abs(found - gaps[KEPT]) > step:
        others = [name for name in gaps if name != KEPT]
        subnormals = min(others, key=lambda name: abs(found - gaps[name]))
        slack = max(step, _FLUSH_SLACK)
    where: Where = {"dtype": dtype, "keys": keys, "subnormals": subnormals}
    return one.row("gap at which a weight becomes 0", where, gaps[subnormals], found, slack=slack)


KEPT, FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT = "kept", "exponential flushed", "weight flushed"


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


def lowest_weight(attend: Attend, dtype: str, keys: int, gap: float) -> float:
    """Weight of the one key of `keys` whose logit lies `gap` below all others, which are 0."""
    q, k, v = (np.zeros((1, 1, n, keys), carrier(dtype)) for n in (1, keys, keys))
    q[..., 0], k[0, 0, -1, 0], v[0, 0, -1] = 1, round_to(np.array([-gap]), dtype)[0], 1
    return float(attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0])


def _two_equal(attend: Attend, dtype: str, logit: float) -> float:
    """Weight of the first of two keys with the same large logit; the scale makes it, not the product."""
    q, k, v = (np.ones((1, 1, n, 8), carrier(dtype)) for n in (1, 2, 2))
    v[0, 0, 1] = 0
    return float(attend(q, k, v, causal=False, scale=logit / 8)[0, 0, 0, 0])


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
    limits = pick(rows, "unshifted softmax overflows above")
    one, many = (
        ", ".join(f"{row.measured:.2f} in {row.where['dtype']}" for row in pick(limits, keys=keys))
        for keys in SUMMED_KEYS
    )
    flushing: dict[str, list[str]] = {}
    for row in rows:
        if row.where.get("subnormals", KEPT) != KEPT:
            formats = flushing.setdefault(str(row.where["backend"]), [])
            formats += [str(row.where["dtype"])] if row.where["dtype"] not in formats else []
    told = "; ".join(f"{name} in {', '.join(flushing[name])}" for name in sorted(flushing))
    flush = f" Subnormal numbers are flushed to zero at n = {KEYS[0]} or {KEYS[1]} ({told})." if told else ""
    beyond = [row for row in rows if row.quantity.startswith("weight of two")]
    fate = "right weights" if all(row.passed for row in beyond) else "not always right weights"
    return (
        f"A softmax that does not subtract its largest logit returns NaN above {one}; over {SUMMED_KEYS[-1]} equal "
        f"logits its sum overflows and all its weights are 0 already above {many}. At twice ln(max) the backends "
        f"return {fate}.{flush} {agreement(rows, 'the thresholds of the formats')}."
    )


def draw(finding: Finding) -> Figure:
    """For each format the gaps at which weights vanish, by backend, with the thresholds as lines."""
    figure, panels = new_figure(4, 1, width=15.0, height=4.5, sharey=True)
    rows = [row for row in finding.rows if row.quantity.startswith("gap")]
    names = sorted({str(row.where["backend"]) for row in rows})
    for panel, dtype in zip(panels, DTYPES, strict=True):
        for keys, marker, colour in zip(KEYS, ("o", "s"), CYCLE, strict=False):
            mine, lift = pick(rows, dtype=dtype, keys=keys), 0.14 if keys == KEYS[0] else -0.14
            heights = [names.index(str(row.where["backend"])) + lift for row in mine]
            panel.plot([row.measured for row in mine], heights, marker, color=colour, label=f"n = {keys}")
            # broad and pale: in bfloat16 the one of 64 keys lies under the line where e^x overflows
            gaps = vanishing_gaps(dtype, keys)
            panel.axvline(gaps[KEPT], color=colour, linewidth=4, alpha=0.35, zorder=1)
        panel.axvline(gaps[FLUSHED_EXPONENTIAL], color=GREY, linestyle=":", linewidth=1.6)
        panel.axvline(gaps[FLUSHED_WEIGHT], color=colour, linestyle=":", linewidth=1.6)
        panel.axvline(overflow_threshold(dtype), color=RED, linestyle="--", linewidth=1.2)
        entitle(panel, dtype, "gap Δ below the other logits", "")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(-0.6, len(names) - 0.2)
    figure.suptitle("The gap at which a key loses all its weight", fontsize=13, fontweight="bold")
    panels[-1].plot([], [], color=BLACK, linewidth=4, alpha=0.35, label="predicted, subnormals kept")
    panels[-1].plot([], [], color=GREY, linestyle=":", label="predicted, exponential flushed")
    panels[-1].plot([], [], color=CYCLE[1], linestyle=":", label=f"predicted, weight flushed, n = {KEYS[1]}")
    panels[-1].plot([], [], color=RED, linestyle="--", label="e^x overflows: ln(max)")
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    legend(panels[-1], fontsize=8.5, title="a weight becomes 0 at", title_fontsize=8.5, **beside)
    return figure
