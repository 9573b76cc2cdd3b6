"""Is one answer right? It is compared with the expected result, and the first thing that is wrong is reported.

There are two kinds of tests. *Facts* hold for every right answer: it is finite, it lies between the least and the
greatest value of its head, no row is wrongly all zeros, and what is not rounded is exact. *Statistics* compare the
error with the error that independent roundings predict: its size, its largest component, and its parts along two
directions, along which errors of rounding do not line up. The directions are the output itself (a gain: weights that do
not sum to 1) and the derivative with respect to the scale (a wrong scale).

`weigh` compares one answer with its exact result. `judge` compares all answers to a workload, on some of its query
rows, as races do before the clock starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.error_budget import FULL, SCORES, ErrorBudget, classify
from attnlab.correctness.expected import Expected, expect
from attnlab.errors import Declined
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import Array, float_format, lower
from attnlab.workload.result import Accuracy
from attnlab.workload.workload import LOG_SUM, OF_QUERIES, OUTPUT, Workload

#: the contract: the error of a right answer is at most this many budgets
SLACK = 1.25
#: the number of standard deviations of the measured error that are allowed in addition
SCATTERS = 6.0
#: the largest |error|/rms of a component; a normal error exceeds it once in 10^13 components
LARGEST = 7.5
#: the number of standard errors beyond which an error along a direction counts: P(|z| > x) <= 2 exp(-x²/2) for any
#: independent errors that are as likely up as down, because z is normalised by their own scatter
DIRECTED = 8.0
#: the same if rows share roundings, for example of keys that were multiplied by the scale once for all rows
DIRECTED_SHARED = 20.0
#: what roundings of constants (scale, log2 e, 1/l), which all rows share, may shift; in units of the inner roundoff
CONSTANTS = 4.0
#: a shift that rows share does not count below this fraction of the dtype's own roundoff
IMMATERIAL = 1 / 8
#: the same on inputs that are not those of the check: saturated rows have many weights that are subnormal in float16,
#: and PyTorch's fused CPU kernel shifts by up to 0.2 u there
IMMATERIAL_ANYWHERE = 1 / 2
#: like CONSTANTS, if scores are 0 and weights 1/2, so that no constant rounds: numbers that are cut off instead of
#: rounded lose 1/(2 ln 2) = .72 u on average
NO_CONSTANTS = 0.5

#: a direction explains an error if the rest of the error is less than this fraction of it
_MOST = 0.5
#: the least predicted error, so that its square is not zero in float64
_LEAST = 1e-140

Answers = Mapping[str, NDArray[Any]]
#: query rows, None for all
QueryRows = Sequence[int] | None
#: per direction: the error's part along it, its meaning if it is most of the error, what the error resembles if not
Along = Sequence[tuple["Direction", str, str]]


class Direction(NamedTuple):
    """The part of an error that lies along a known direction: error ≈ shift × direction.

    z : shift in units of its standard error, which comes from the scatter between independent errors. rest : the
    fraction of the error that does not lie along the direction.
    """

    shift: float
    z: float
    rest: float = 1.0

    @property
    def said(self) -> str:
        """Too large or too small, and by how much."""
        size = abs(self.shift)
        amount = f"{100 * size:.2g} %" if size >= 1e-4 else f"{size:.2g}"
        return f"too {'large' if self.shift > 0 else 'small'} by {amount}"


def directed(error: Array, direction: Array, rms: Array, shared: tuple[int, ...]) -> Direction:
    """The component of `error` along `direction`, weighted by 1/rms², with a standard error from clusters.

    A cluster is a set of components that share roundings, along the axes `shared`. The standard error is √Σt², where t
    is the contribution of a cluster. It needs no budget: it is right for any errors that are independent between
    clusters.
    """
    pulled = (error * direction / rms**2).sum(axis=shared)
    total, norm = float(pulled.sum()), float((direction * direction / rms**2).sum())
    shift, scatter = total / norm if norm > 0 else 0.0, float(np.sqrt((pulled**2).sum()))
    rest = 1.0
    if 0 < abs(shift) < 1:
        rest = float(np.linalg.norm(error - shift * direction) / np.linalg.norm(error))
    return Direction(shift, total / scatter if scatter > 0 else 0.0, rest)


def weigh(
    expected: Expected,
    output: NDArray[Any],
    *,
    exact: bool = False,
    directions: float | None = DIRECTED,
    immaterial: float = IMMATERIAL,
) -> Accuracy:
    """Compare `output`, (batch, heads, rows, value_dim), or ln Z, (batch, heads, rows), with the `expected` result.

    The `reason` of the returned accuracy is the first thing that is wrong, in words. exact : no weight and no score
    rounds, so that only the tightest budget holds and the errors of all components are independent. directions : the z
    beyond which a gain or a wrong scale is reported; None: not tested. immaterial : the fraction of the dtype's
    roundoff that a shared shift may have.
    """
    truth, of = expected.output, expected.of
    answer = np.asarray(output, dtype=np.float64).reshape(truth.shape)
    fault = _incomparable(expected, answer)
    if fault is not None:
        most, no = expected.lenient.relative, math.inf
        return Accuracy(no, most, False, fault, None, no, no, of=of)
    if expected.infinite is not None:
        answer = np.where(expected.infinite, 0.0, answer)
    error, dtype = answer - truth, expected.dtype
    budget, mantissa = (expected.classes[FULL], 1.0) if exact else (expected.lenient, expected.mantissa)
    relative, allowed = relative_error(error, truth), allowance(budget) * mantissa
    # a processor may replace inner numbers below the smallest normal one by 0
    inner = float_format("float64" if dtype == "float64" else "float32")
    least = max(float_format(dtype).smallest_subnormal, inner.smallest_normal, _LEAST)
    rms = np.maximum(budget.rms, least) * mantissa
    shared = () if exact else expected.shared
    tilt = expected.lenient.tilt
    gain, scale = (directed(error, one, rms, shared) for one in (truth, tilt))
    along: Along = (
        (scale, f"the scale looks {scale.said}", "the derivative in the scale"),
        (gain, expected.gained.format(gain.said), "the result itself"),
    )
    fault = _broken_fact(expected, answer, error, rms)
    if fault is None and (exact or expected.first_order):
        # if all scores of a row are equal, the tilt is 0: all its weights are one number, and round alike
        told = directions is not None and (exact or bool(tilt.any()))
        named = _counted(along, truth, tilt, systematic(dtype, None if exact else immaterial)) if told else ()
        # e^δ − 1 in place of δ: if the error δ of a score is large, the error of its weight is not normal
        spread = 0.0 if exact else expected.lenient.exponent_error
        far = np.abs(error) / rms * (LARGEST * spread / math.expm1(LARGEST * spread) if spread else 1.0)
        # a weight moves a whole row of a block: products of two normal numbers are allowed four times the limit
        far = far / 4 if expected.of_block else far
        fault = _improbable(expected, named, directions or 0.0, relative, allowed, far)
    likest, cause, _ = min(along, key=lambda each: each[0].rest)
    if fault is not None and likest.rest < _MOST and cause not in fault:
        fault = f"{fault}; {cause}"
    # the tightest class that covers the error, and the ratio of the error to its budget
    kind = classify(relative, expected.classes, SLACK) if math.isfinite(relative) else None
    if kind is None and relative <= allowed:
        kind = SCORES  # covered together with the scatter of few roundings
    most = expected.classes[kind or SCORES].relative
    ratio = relative / most if most > 0 else (0.0 if relative == 0 else math.inf)
    ulp = max_ulp(error, truth, dtype)
    return Accuracy(relative, allowed, fault is None, fault, kind, ratio, ulp, gain.z, of)


def _counted(along: Along, truth: Array, tilt: Array, honest: float) -> Along:
    """The directions along which the shift of an error is more than `honest`. along : of the scale, then of the result.

    A rounded exponential may shift all weights by `honest`. If scores are small, this is like a larger relative error
    of the scale. So the limit for the scale is the shift that moves the result as far as a gain of `honest` does. A
    shift of 1 or more does not count: the derivative is nearly 0 there, and the error is not linear in it.
    """
    most = honest * max(1.0, float(np.linalg.norm(truth)) / max(float(np.linalg.norm(tilt)), _LEAST))
    return tuple(one for one, low in zip(along, (most, honest), strict=True) if low < abs(one[0].shift) < 1)


def _improbable(
    expected: Expected, along: Along, least_z: float, relative: float, allowed: float, far: Array
) -> str | None:
    """Why independent roundings cannot cause the error: it lines up, is too large, or far off at one place. Or None."""
    # other faults have parts along both directions too: a cause is named only if it is most of the error
    for one, cause, like in sorted(along, key=lambda each: (each[0].rest >= _MOST, -abs(each[0].z))):
        if abs(one.z) > least_z:
            said = cause if one.rest < _MOST else f"errors line up with {like}, as if it were {one.said}"
            return f"{said} (z = {one.z:.0f})"
    if relative > allowed:
        return f"relative error {relative:.3g}, at most {allowed:.3g} is rounding in {expected.dtype}"
    if far.max() > LARGEST:
        at = _place(expected, far)
        return f"an error of {far.max():.3g} standard deviations, at most {LARGEST:g} is rounding, at {at}"
    return None


def allowance(budget: ErrorBudget) -> float:
    """The largest relative error that passes: 1.25 budgets plus six standard deviations of the scatter."""
    return budget.relative * (SLACK + SCATTERS * float(np.nan_to_num(budget.relative_scatter)))


def systematic(dtype: str, immaterial: float | None = IMMATERIAL) -> float:
    """The relative shift that rows of a right answer may share. immaterial : None if only the output is rounded."""
    inner = float_format("float64" if dtype == "float64" else "float32").unit_roundoff
    if immaterial is None:
        return NO_CONSTANTS * inner
    return CONSTANTS * inner + immaterial * float_format(dtype).unit_roundoff


def max_ulp(error: Array, output: Array, dtype: str) -> float:
    """The largest |error| in units in the last place of the largest exact component of its row.

    The row decides, because the last place of a component that is nearly 0 by cancellation means nothing.
    """
    form = float_format(dtype)
    size = np.maximum(np.abs(output).max(axis=-1, keepdims=True), form.smallest_normal)
    spacing = 2 * form.unit_roundoff * np.exp2(np.floor(np.log2(size)))
    with np.errstate(over="ignore"):  # the ratio to a row of zeros may overflow float64
        return float((np.abs(error) / spacing).max())


def relative_error(error: Array, exact: Array) -> float:
    """‖error‖_F/‖exact‖_F; infinite if the exact numbers are 0 and the error is not."""
    norm, off = float(np.linalg.norm(exact)), float(np.linalg.norm(error))
    if norm > 0:
        return off / norm
    return 0.0 if off == 0 else math.inf


def _incomparable(expected: Expected, answer: Array) -> str | None:
    """Why an answer cannot be compared: NaN, infinity, or -inf at other places than where it is expected."""
    infinite, bad = expected.infinite, ~np.isfinite(answer)
    if infinite is not None:
        misplaced = np.argwhere(np.isneginf(answer) != infinite)
        if misplaced.size:
            b, h, i, _ = misplaced[0]
            wanted = "-inf" if infinite[b, h, i, 0] else "a number"
            where = f"batch {b}, head {h}, row {expected.rows[i]}"
            return f"expected {wanted} at {where}, got {answer[b, h, i, 0]:.6g}"
        bad &= ~infinite
    if not bad.any():
        return None
    first = expected.rows[np.argwhere(bad)[:, 2].min()]
    what = "NaN" if np.isnan(answer).any() else "infinity"
    return f"{what} in {bad.sum()} of {bad.size} values, in row {first} first; every input is finite"


def _place(expected: Expected, excess: Array) -> str:
    b, h, i, c = np.unravel_index(int(np.argmax(excess)), excess.shape)
    head = "" if expected.of_block else f"head {h}, "
    return f"batch {b}, {head}row {expected.rows[i]}, component {c}"


def _broken_fact(expected: Expected, answer: Array, error: Array, rms: Array) -> str | None:
    beyond = np.maximum(expected.low - answer, answer - expected.high) - expected.hull_slack
    outside = bool((beyond > 0).any())
    blank = (answer == 0).all(axis=-1) & (np.abs(expected.output) > LARGEST * rms).any(axis=-1)
    inexact = np.where((expected.lenient.rms == 0) & (np.abs(error) > _LEAST), np.abs(error), 0.0)
    if not outside and not blank.any() and not inexact.any():
        return None
    worst = beyond if outside else np.abs(error) * blank[..., None] if blank.any() else inexact
    at = np.unravel_index(int(np.argmax(worst)), worst.shape)
    where = f"at {_place(expected, worst)}: expected {expected.output[at]:.6g}, got {answer[at]:.6g}"
    if blank.any():
        return f"{int(blank.sum())} of {blank.size} rows are zero, {where}"
    if outside:
        low, high = (np.broadcast_to(one, answer.shape)[at] for one in (expected.low, expected.high))
        return f"outside the values it averages, {low:.6g} to {high:.6g}, {where}"
    return f"not exact {where}, where nothing is rounded"


# -- other scales and lower number formats

#: an answer is right for another scale if its error there is smaller than this fraction of its error here
_NEARER = 0.1
#: the formats by increasing roundoff, with their names in messages. TF32 rounds the inputs of products as float16 does
_FORMATS = {"float32": "float32", "float16": "float16 or TF32", "bfloat16": "bfloat16"}
#: standard errors, as for `DIRECTED`: another fault exceeds them once in a thousand cases
_SURELY = 4.0


def weigh_rows(
    inputs: Inputs, expected: Expected, answer: NDArray[Any], rows: QueryRows, **how: Any
) -> Accuracy:
    """Compare a whole named answer to `inputs` at the query `rows` (None: all), and explain a wrong output.

    expected : at these rows. how : as for `weigh`. The reason for an answer other than the output begins with its name.
    """
    if rows is not None and expected.of in OF_QUERIES:
        answer = answer[:, rows] if inputs.block is not None else answer[:, :, rows]
    found = weigh(expected, answer, **how)
    if found.reason is None:
        return found
    own = f"{expected.of}: {found.reason}"
    told = _explained(inputs, answer, expected, found.reason, rows) if expected.of == OUTPUT else own
    return replace(found, reason=told)


def _explained(inputs: Inputs, answer: NDArray[Any], exact: Expected, fault: str, rows: QueryRows) -> str:
    """The `fault` of an answer to `inputs`, (batch, heads, rows, value_dim), with an explanation if one is found.

    If the answer is right for a scale of 1/√head_dim, 1 or 1/head_dim that was not asked for, that is returned instead.
    Otherwise a lower number format may explain the error. Then the answer is right, by the budget of that format, for
    inputs rounded to it. And the error follows these inputs: it is about as large as the shift of the exact result by
    the rounding of the inputs (a shift of 1; other faults have 0), and larger than by chance. exact : what is expected
    at the query `rows`.
    """
    if inputs.block is not None or not np.isfinite(answer).all():
        return fault
    for other in (inputs.query.shape[3] ** -0.5, 1.0, 1 / inputs.query.shape[3]):
        expected = expect(inputs.with_(scale=other, output_gradient=None), rows)[OUTPUT]
        # if the scale hardly matters, the answer is equally near to both
        nearer = np.abs(answer - expected.output).max() < _NEARER * np.abs(answer - exact.output).max()
        if nearer and weigh(expected, answer).passed:
            return f"it is right for a scale of {other:.3g}, where {inputs.scale:.3g} was asked for"
    for dtype, said in _FORMATS.items():
        if lower(inputs.dtype, dtype) is None:
            continue
        try:
            rounded = inputs.cast(dtype).with_(output_gradient=None)
        except Declined:
            continue
        expected = expect(rounded, rows)[OUTPUT]
        against = weigh(expected, answer, directions=DIRECTED_SHARED, immaterial=IMMATERIAL_ANYWHERE)
        rms = np.maximum(expected.lenient.rms, float_format(dtype).smallest_subnormal)
        moved = directed(answer - exact.output, expected.output - exact.output, rms, expected.shared)
        if against.passed and abs(moved.shift - 1) < 0.5 and moved.z > _SURELY:
            return (
                f"{fault}; this is the error of computing in {said}: set the precision that its library computes in, "
                "or let the backend say it (COMPUTES_IN)"
            )
    return fault


# -- whole answers to a workload, on some of its query rows

#: query rows are sampled so that at most about this many scores are computed in float64
_SCORES = 2**19
#: the largest head_dim × value_dim at which a row of a block costs about as much as its scores
_HEAD = 2**12


def sampled_rows(workload: Workload, generator: np.random.Generator, most: int | None = None) -> list[int]:
    """Query rows to be checked: all if they are few, else the first, the last and random others.

    most : the number of rows; None for as many as can be computed fast. A block with large heads has fewer rows: for
    each row, the error of a query passes through a matrix of head_dim × value_dim.
    """
    per_row = workload.batch * workload.heads * workload.keys
    if workload.d_model is not None:
        per_row *= max(1, workload.head_dim * workload.value_dim // _HEAD)
    count = most or max(8, _SCORES // per_row)
    if count >= workload.queries:
        return list(range(workload.queries))
    drawn = generator.choice(workload.queries, size=count - 2, replace=False)
    return sorted({0, workload.queries - 1, *map(int, drawn)})


def judge(
    workload: Workload,
    inputs: Inputs,
    rows: Sequence[int],
    answers: Answers,
    computes_in: str | None,
    known: dict[str | None, Mapping[str, Expected]] | None = None,
) -> Accuracy:
    """The accuracy of whole `answers` on these query rows: that of the worst one, with the reason if it is wrong.

    answers : by the names of `Workload.results`. computes_in : the number format in which the contender computes. If it
    is lower than the workload's, the exact results and the budget are those for inputs rounded to it. The output's
    gradient should be 0 except on these rows: then the gradients of key and value do not depend on the other rows.
    known : keeps the exact results for these inputs and rows, by number format, for the next contender.

    Raises Declined if that number format does not hold the inputs.
    """
    less, known = lower(workload.dtype, computes_in), {} if known is None else known
    cast = inputs if less is None else inputs.cast(less)
    if less not in known:
        known[less] = expect(cast, rows, log_sum=LOG_SUM in workload.results)
    judged = []
    for name, expected in known[less].items():
        if name in workload.results:
            judged.append(weigh_rows(cast, expected, answers[name], rows, **anywhere(name)))
    return max(judged, key=lambda one: (not one.passed, one.relative_error / max(one.budget, 1e-300)))


def anywhere(name: str) -> dict[str, Any]:
    """How `weigh` judges an answer if the inputs are not those of the check's questions."""
    return {"directions": DIRECTED_SHARED if name == OUTPUT else None, "immaterial": IMMATERIAL_ANYWHERE}
