"""What do the number formats do: where do logits overflow or underflow, and how does the rounding error grow?

e^x overflows above ln(max) of its format. The sum of n equal ones overflows above ln(max) − ln n (in float16, added one
by one: within 0.3 of that up to n = 4,096, and at 2.77 beyond). exp(s)/Σ exp(s) is then a number over ∞, which is 0,
for every key. Above ln(max) it is ∞/∞, a NaN. If all logits are very negative (−110 in float32) it is 0/0, again a NaN.
A softmax that first subtracts the row's largest logit, if that is finite, meets none of these. Its sum must still be in
float32 at least: in float16, ones added one by one stop at 2,048, and the weights then add up to more than 1.

A single weight still underflows. A key whose logit lies Δ below n − 1 equal ones has about the weight e^{−Δ}/(n − 1).
It is rounded to 0 below half the smallest subnormal number. A kernel that flushes subnormal numbers loses it earlier.
It may flush the exponential, at about the smallest normal number, or the weight. Many processors compute slowly with
subnormal numbers (Dooley and Kale 2006). There a kernel that keeps them can take longer if most weights are subnormal.

With log-uniform digits a stored number that is not subnormal is off by 0.42 u in the root mean square. The unit
roundoff u is 2⁻²⁴ in float32, 2⁻¹¹ in float16 and 2⁻⁸ in bfloat16. In 16 bits little else counts, if arithmetic is in
float32 and rows are short (here up to 4,096 keys). So three errors can be predicted: only the output is stored (full
precision inside), the normalised weights too, or the scores as well. A measured error is held against the nearest of
the three. It must lie within five standard errors of it, or within a quarter if that is more, a chosen allowance.
Numbers that all had the same leading digits would round by 0.68 to 1.36 times the average; mixed ones lie closer. The
three ranges can overlap, so a pass need not tell what a kernel stores. In float32, arithmetic adds here up to 90 times
0.42 u. There the budget assumes sequential sums, with the same allowance.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.error_budget import ErrorBudget
from attnlab.lab import theory
from attnlab.lab.experiments import Chart, Experiment, Row, Subject, generator, measured, of
from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import DTYPES, carrier, round_to

#: keys of a row with one logit below all others; two keys use the scalar remainder of vectorised code
KEYS = (2, 64)
#: keys of a row of equal logits, for the softmax that subtracts nothing
SUMMED_KEYS = (1, 1024)
#: how far, in units of the logit, a polynomial exponential may become 0 before the smallest normal number
_FLUSH_SLACK = 0.5
SUBNORMALS = KEPT, FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT = "kept", "exponential flushed", "weight flushed"
GAP, LIMIT = "gap at which a weight becomes 0", "unshifted softmax overflows above"
TWO_EQUAL, ERROR = "weight of two equal logits at twice ln(max)", "relative error"
#: the sizes that are varied for the error: their values, and the value while another size is varied
AXES: Mapping[str, tuple[tuple[float, ...], float]] = {
    "keys": ((16, 64, 256, 1024, 4096), 512),
    "head_dim": ((4, 16, 64, 256), 64),
    "logit_std": ((0.25, 1.0, 2.0, 4.0, 8.0, 16.0), 1.0),
}
_HEADS, _QUERIES = 2, 32
#: allowed relative error of a prediction, because mantissas need not be log-uniform
_OFF = 0.25
#: timed calls with subnormal weights; heads, length and head dimension of a call
_CALLS, _TIMED = 5, (4, 512, 64)
#: classes of kernels, by what they round to the number format, as far as the error shows it
_CLASSES = ("full precision inside", "weights rounded", "scores rounded")
SUBNORMAL = "time with subnormal weights / with ordinary ones"
Point = tuple[list[NDArray[Any]], float, Mapping[str, ErrorBudget], dict[str, float]]


def measure(one: Subject) -> Iterator[Row]:
    """Without random inputs: where weights become 0, and the weights at large logits. Then errors, and a time."""
    if one.lead and one.dtype != "bfloat16":
        yield from textbook_overflow(one.dtype)
    yield from (gaps := list(_vanishing(one)))
    # the scale makes the logit large, not the product q·k
    logit = 2 * theory.overflow_threshold(one.dtype)
    q, k, v = (np.ones((1, 1, n, 8), carrier(one.dtype)) for n in (1, 2, 2))
    v[0, 0, 1] = 0
    weight = float(one.attend(q, k, v, causal=False, scale=logit / 8)[0, 0, 0, 0])
    room = 2 * theory.float_format(one.dtype).unit_roundoff
    yield one.row(TWO_EQUAL, {"dtype": one.dtype, "logit": logit}, 0.5, weight, slack=room)
    if one.dtype != "float64":
        yield from _errors(one)
    if one.dtype == "float32" and not one.slow:
        (heads, length, dim), times = _TIMED, []
        for distribution in ("normal", "subnormal"):
            drawn = one.rng(1250).standard_normal((3, 1, heads, length, dim))
            arrays = DISTRIBUTIONS[distribution](drawn[0], drawn[1], drawn[2], dim**-0.5, one.rng(1251))
            call = partial(one.attend, *arrays, causal=False, scale=dim**-0.5)
            # CPU time, the least of `_CALLS` calls
            times.append(min(timeit.repeat(call, number=1, repeat=_CALLS, timer=time.process_time)))
        where = {"dtype": one.dtype, "subnormals": gaps[-1].where["subnormals"]}
        yield one.row(SUBNORMAL, where, None, times[1] / times[0])


def last_before(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest x at which `holds` is still true, by bisection between `low` and `high`.

    Infinity if `holds` is true at `high`; `low` if it is not even true at `low`.
    """
    if holds(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def spacing(dtype: str, at: float) -> float:
    """Distance between neighbouring numbers of `dtype` around `at`."""
    return float(2.0 ** (math.floor(math.log2(at)) + 1 - theory.float_format(dtype).precision))


def textbook_overflow(dtype: str) -> Iterator[Row]:
    """The logits at which exp(s)/Σexp(s) of n equal logits fails, and the weights that it then gives.

    The sum overflows first, and the weights are 0. Then each exponential overflows, and the weights are NaN. They are
    also NaN if all exponentials underflow to 0.
    """
    limit = theory.overflow_threshold(dtype)
    textbook = {"backend": "textbook exp(s)/Σexp(s)", "dtype": dtype}

    def weights(logit: float, keys: int) -> NDArray[Any]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            exponentials = np.exp(np.full(keys, logit).astype(dtype))
            return np.asarray(exponentials / exponentials.sum())

    def alive(keys: int, logit: float) -> bool:
        return bool((weights(logit, keys) > 0).all())

    for keys in SUMMED_KEYS:
        where, expected = {**textbook, "keys": keys}, limit - math.log(keys)
        room = spacing(dtype, expected) + 2 * theory.float_format(dtype).unit_roundoff
        found = last_before(partial(alive, keys), 1.0, 4 * limit)
        yield Row.compare(LIMIT, where, expected, found, slack=room)
    low = -theory.underflow_threshold(dtype) - 1
    for logit, zero, nan in ((limit - math.log(keys) / 2, 1.0, 0.0), (limit + 1, 0.0, 1.0), (low, 0.0, 1.0)):
        failed, where = weights(logit, keys), {**where, "logit": logit}
        yield Row.compare("share of unshifted weights that are 0", where, zero, np.mean(failed == 0))
        yield Row.compare("share of unshifted weights that are NaN", where, nan, np.mean(np.isnan(failed)))
    off, where = np.abs(keys * weights(1.0, keys).astype(np.float64) - 1).max(), {**where, "logit": 1.0}
    room = 4 * spacing(dtype, 1.0)
    yield Row.compare("largest relative error of unshifted weights", where, 0.0, off, slack=room)


def _vanishing(one: Subject) -> Iterator[Row]:
    """The gap at which the weight e^{−gap}/(n − 1) of one key below n − 1 equal ones becomes 0.

    A row passes if the gap is within one spacing of the format from the exact gap with subnormal numbers. It also
    passes within half a unit of a gap at which exponentials or weights are flushed; `where` says which.
    """
    for keys in KEYS:
        q, k, v = (np.zeros((1, 1, n, keys), carrier(one.dtype)) for n in (1, keys, keys))
        q[..., 0], v[0, 0, -1] = 1, 1

        def alive(gap: float, q: Any = q, k: Any = k, v: Any = v) -> bool:
            k[0, 0, -1, 0] = round_to(np.array([-gap]), one.dtype)[0]
            return bool(one.attend(q, k, v, causal=False, scale=1.0)[0, 0, 0, 0] > 0)

        found, shared = last_before(alive, 1.0, 2000.0), math.log(keys - 1)
        flushed = -math.log(theory.float_format(one.dtype).smallest_normal)
        kept = theory.underflow_threshold(one.dtype) - shared
        gaps = {KEPT: kept, FLUSHED_EXPONENTIAL: flushed, FLUSHED_WEIGHT: flushed - shared}
        subnormals, slack = KEPT, spacing(one.dtype, kept)
        if abs(found - kept) > slack:
            subnormals = min(FLUSHED_EXPONENTIAL, FLUSHED_WEIGHT, key=lambda name: abs(found - gaps[name]))
            slack = max(slack, _FLUSH_SLACK)
        where = {"dtype": one.dtype, "keys": keys, "subnormals": subnormals}
        yield one.row(GAP, where, gaps[subnormals], found, slack=slack)


@lru_cache(maxsize=64)
def point(dtype: str, axis: str, value: float, seed: int) -> Point:
    """q, k, v in the format at a point of an axis, the same for every backend; scale, error budgets, predicted errors.

    Budgets and predicted errors are relative, by precision class. A predicted error contains the actual rounding of the
    output. So it lies below its budget if one weight is near 1: the output is then nearly one of the values, which the
    format holds.
    """
    size = {**{name: usual for name, (_, usual) in AXES.items()}, axis: value}
    keys, dim = int(size["keys"]), int(size["head_dim"])
    rng, scale = generator(seed, 1200, list(AXES).index(axis), round(16 * value)), 1 / math.sqrt(dim)
    arrays = [
        round_to(factor * rng.standard_normal((1, _HEADS, n, dim)), dtype)
        for n, factor in ((_QUERIES, size["logit_std"]), (keys, 1.0), (keys, 1.0))
    ]
    # a scale that is a power of two rounds nothing, so scores are rounded once
    roundings = 1 if math.frexp(scale)[0] == 0.5 else 2
    asked = Inputs.of(*arrays, dtype=dtype, scale=scale)
    budgets = theory.error_budget(asked, score_roundings=roundings).classes()
    known = dict[str, float]()
    for name, budget in budgets.items():
        others = budget.restricted_to(*(source for source in budget.variances if source != "output"))
        rounded = round_to(budget.output, dtype).astype(np.float64) - budget.output
        stored = float(np.linalg.norm(rounded) / np.linalg.norm(budget.output))
        known[name] = math.hypot(others.relative, stored)
    return arrays, scale, budgets, known


def _errors(one: Subject) -> Iterator[Row]:
    """The relative Frobenius error along three axes and the nearest predicted error; in float32 a budget instead."""
    for axis, (values, _) in AXES.items():
        for value in [each for each in values[::2] if each <= 1024] if one.slow else values:
            arrays, scale, budgets, known = point(one.dtype, axis, value, one.seed)
            exact = next(iter(budgets.values())).output
            output = one.attend(*arrays, causal=False, scale=scale).astype(np.float64)
            relative = float(np.linalg.norm(output - exact) / np.linalg.norm(exact))
            if one.dtype == "float32":  # the tightest budget that covers it
                name = theory.classify(relative, budgets) if math.isfinite(relative) else None
                name, relation = name or list(budgets)[-1], "≤"
                expected = budgets[name].relative
            else:
                name = min(known, key=lambda each: abs(math.log(max(relative, 1e-30) / known[each])))
                expected, relation = known[name], "="
            where = {"dtype": one.dtype, "axis": axis, "value": value, "precision": name}
            room = {"standard_error": expected * budgets[name].relative_scatter, "slack": _OFF * expected}
            yield one.row(ERROR, where, expected, relative, relation=relation, **room)


_LARGE = partial(measured, ERROR, dtype="bfloat16", axis="logit_std")
EXPERIMENT = Experiment(
    about=__doc__,
    title="Number formats: overflow, underflow and rounding",
    measure=measure,
    dtypes=DTYPES,
    timed=True,
    sentences=(
        "Without subtracting the largest logit, 1024 equal logits get weights of 0 above {half:.2f} in float16 "
        "and {single:.2f} in float32. Above {nan:.2f} and {single_nan:.2f} they get NaN.",
        "Let the logits in bfloat16 grow from a standard deviation of 0.25 to 16. The relative error of "
        "the formula in PyTorch operations then goes from {small:.1e} to {large:.1e}, that of PyTorch's fused "
        "kernel for the CPU from {fused:.1e} to {fused_large:.1e}.",
    ),
    numbers={
        "half": measured(LIMIT, keys=1024, dtype="float16"),
        "single": measured(LIMIT, keys=1024, dtype="float32"),
        "nan": measured(LIMIT, keys=1, dtype="float16"),
        "single_nan": measured(LIMIT, keys=1, dtype="float32"),
        "small": _LARGE(value=0.25, backend="torch_eager"),
        "large": _LARGE(value=16.0, backend="torch_eager"),
        "fused": _LARGE(value=0.25, backend="torch_sdpa"),
        "fused_large": _LARGE(value=16.0, backend="torch_sdpa"),
    },
    lesson="Subtract the largest logit. Else 1024 equal logits between 4.16 and 11.09 give weights of 0 in float16, "
    "without an error; a row of logits below −17.33 gives NaN. Keep q·k of float16 inputs in float32: it can pass "
    "65,504 although the scaled logit does not, and then no subtraction helps. In theory large logits raise the error "
    "if scores are stored in 16 bits, but not if only weights are. So scores in float32 are safer for large logits.",
    charts=(
        Chart(
            title="A key this far below the others weighs nothing",
            y="gap Δ below 63 equal logits (bar: predicted; NumPy has no bfloat16)",
            by="backend",
            lines={dtype: of(GAP, dtype=dtype, keys=64) for dtype in DTYPES},
            limits=(10.0, 1000.0),
        ),
        Chart(
            title="Rounded scores cost most at large logits",
            x="value",
            x_label="standard deviation of the logits, in bfloat16 (colour: nearest budget)",
            y=ERROR,
            log_y=True,
            lines={kind: of(ERROR, dtype="bfloat16", axis="logit_std", precision=kind) for kind in _CLASSES},
        ),
        Chart(
            title="Subnormal weights can slow kernels that keep them",
            y=f"{SUBNORMAL} (some 6 % are noise)",
            by="backend",
            log_x=False,
            lines={kind: of(SUBNORMAL, subnormals=kind) for kind in SUBNORMALS},
            marks={"no cost": 1.0},
        ),
    ),
)
