"""One answer held against its reference: the measured numbers, and the first thing that is wrong with it.

Two kinds of test. *Facts* hold for every right answer without exception: it is finite, it lies between the
least and the greatest value its row sees, and no component is further off than the worst case of rounding.
*Statistics* compare the error with what independent roundings predict: its size, its largest component, and
two directions in which an error must not line up, because roundings do not: the output itself (a gain: weights
that do not sum to 1) and the derivative in the scale (a wrong scale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.error_budget import SCORES, ErrorBudget, classify
from attnlab.correctness.numbers import Array, float_format
from attnlab.correctness.reference import Reference, refer
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import lower
from attnlab.workload.result import Accuracy
from attnlab.workload.workload import OUTPUT

#: the contract: an honest error is at most this many budgets
SLACK = 1.25
#: standard deviations of the measured error's own scatter that are allowed on top
SCATTERS = 6.0
#: largest |error|/rms; a normal error passes it once in 10^13 components
LARGEST = 7.5
#: standard errors that a directed error must have before it counts: P(|z| > x) <= 2 exp(-x²/2) for any
#: independent errors that are as likely up as down, since z is normalised by their own scatter
DIRECTED = 8.0
#: the same where rows share roundings, of keys that were scaled for all of them
DIRECTED_SHARED = 20.0
#: roundings of constants (scale, log2 e, 1/l) that every row shares, in units of the inner roundoff
CONSTANTS = 4.0
#: a shared shift below this part of the dtype's own roundoff is nobody's concern
IMMATERIAL = 1 / 8
#: the same on inputs that are not the gate's own: saturated rows have many weights that are subnormal in float16,
#: and PyTorch's fused CPU kernel shifts by up to 0.2 u there
IMMATERIAL_ANYWHERE = 1 / 2
#: as CONSTANTS, where scores are 0 and weights 1/2, so that no constant is left to round: numbers that are cut off
#: instead of rounded lose 1/(2 ln 2) = .72 u on average
NO_CONSTANTS = 0.5

#: a direction makes up most of an error whose rest is a smaller part of it
_MOST = 0.5
#: floor of a predicted error, so that its square is no zero in float64
_LEAST = 1e-140


@dataclass(frozen=True)
class Direction:
    """The part of an error that lies along a known direction: error ≈ shift × direction.

    z : shift in units of its standard error, from the scatter between independent errors. rest : the part of the error
    that does not lie along the direction.
    """

    shift: float
    z: float
    rest: float = 1.0

    @property
    def size(self) -> str:
        """How large the shift is, in words."""
        shift = abs(self.shift)
        return f"{100 * shift:.2g} %" if shift >= 1e-4 else f"{shift:.2g}"

    @property
    def way(self) -> str:
        """Too large, or too small."""
        return "too large" if self.shift > 0 else "too small"


def weigh(
    reference: Reference,
    output: NDArray[Any],
    *,
    exact: bool = False,
    directions: float | None = DIRECTED,
    immaterial: float = IMMATERIAL,
) -> Accuracy:
    """Hold `output`, (batch, heads, rows, value_dim), or ln Z, (batch, heads, rows), against `reference`.

    The `reason` is the first thing that is wrong with it, in words. exact : the inputs leave no weight and no score to
    round, so that only the tightest budget is honest and every component is an independent error. directions : the z
    beyond which a gain or a wrong scale is told; None: not looked for. immaterial : the part of the dtype's roundoff
    that a shared shift may have.
    """
    answer, truth = np.asarray(output, dtype=np.float64).reshape(reference.output.shape), reference.output
    rows_checked, rows = reference.checked
    fault = _incomparable(reference, answer)
    if fault is not None:
        most, no = reference.lenient.relative, math.inf
        return Accuracy(no, most, no, rows_checked, rows, False, fault, None, no, no, of=reference.of)
    if reference.infinite is not None:
        answer = np.where(reference.infinite, 0.0, answer)
    error = answer - truth
    budget, mantissa = (reference.full, 1.0) if exact else (reference.lenient, reference.mantissa)
    relative, allowed = _relative(error, truth), allowance(budget) * mantissa
    kind, ratio = _kind(relative, allowed, reference)
    rms = np.maximum(budget.rms, max(float_format(reference.dtype).smallest_subnormal, _LEAST)) * mantissa
    shared = () if exact else reference.shared
    gain = directed(error, truth, rms, shared)
    # each direction, with what it means where it makes up most of the error, and what the error is like else
    scale = directed(error, reference.lenient.tilt, rms, shared)
    along = (
        (scale, f"the scale looks {scale.way} by {scale.size}", "the derivative in the scale"),
        (gain, reference.gained.format(f"{gain.way} by {gain.size}"), "the result itself"),
    )
    fault = _broken_fact(reference, answer, error)
    if fault is not None:
        likest, cause, _ = min(along, key=lambda each: each[0].rest)
        fault += f"; {cause}" if likest.rest < _MOST else ""
    elif exact or reference.first_order:
        if directions is not None:
            fault = _lined_up(along, directions, systematic(reference.dtype, None if exact else immaterial))
        fault = fault or _too_far_off(reference, relative, allowed, np.abs(error) / rms)
    return Accuracy(
        relative_error=relative,
        budget=allowed,
        largest_error=float(np.abs(error).max()),
        rows_checked=rows_checked,
        rows=rows,
        passed=fault is None,
        reason=fault,
        kind=kind,
        ratio=ratio,
        max_ulp=max_ulp(error, truth, reference.dtype),
        bias=gain.z,
        of=reference.of,
    )


def allowance(budget: ErrorBudget) -> float:
    """The largest relative error that passes: 1.25 budgets, and six of the scatter that few roundings leave."""
    scatter = budget.relative_scatter
    return budget.relative * (SLACK + SCATTERS * (scatter if math.isfinite(scatter) else 0.0))


def told_apart(first: NDArray[Any], again: NDArray[Any], asked: str, reference: Reference) -> str | None:
    """Whether two answers to one question differ; `asked` says in words when the second was given."""
    was, off = (one.astype(np.float64) for one in (first, again))
    relative = _relative(off - was, was)
    if relative > 2**0.5 * allowance(reference.lenient):
        return f"asked again {asked}, the answer differs by {relative:.3g} relative"
    return None


def directed(error: Array, direction: Array, rms: Array, shared: tuple[int, ...]) -> Direction:
    """The component of `error` along `direction`, weighted by 1/rms², with a standard error from its clusters.

    The standard error is √Σt², t the contribution of a cluster, whose components share roundings: along the axes
    `shared`. It needs no budget: it is right for any errors that are independent between clusters.
    """
    weight = 1 / rms**2
    pulled, reach = error * direction * weight, direction * direction * weight
    pulled = pulled.sum(axis=shared)
    total, norm, scatter = float(pulled.sum()), float(reach.sum()), float(np.sqrt((pulled**2).sum()))
    shift = total / norm if norm > 0 else 0.0
    rest = (
        float(np.linalg.norm(error - shift * direction) / np.linalg.norm(error))
        if 0 < abs(shift) < 1
        else 1.0
    )
    return Direction(shift, total / scatter if scatter > 0 else 0.0, rest)


def max_ulp(error: Array, output: Array, dtype: str) -> float:
    """Largest |error| in units in the last place of the largest exact component of its row.

    Of the row's, because a component that is nearly 0 by cancellation has no last place of its own.
    """
    form = float_format(dtype)
    size = np.maximum(np.abs(output).max(axis=-1, keepdims=True), form.smallest_normal)
    spacing = 2 * form.unit_roundoff * np.exp2(np.floor(np.log2(size)))
    with np.errstate(over="ignore"):  # float64 has no number for an error beside a row of zeros
        return float((np.abs(error) / spacing).max())


def _relative(error: Array, exact: Array) -> float:
    norm, off = float(np.linalg.norm(exact)), float(np.linalg.norm(error))
    if norm > 0:
        return off / norm
    return 0.0 if off == 0 else math.inf


def _kind(relative: float, allowed: float, reference: Reference) -> tuple[str | None, float]:
    """The tightest class that covers the error, and the error in units of that class's budget."""
    kind = classify(relative, reference.classes, SLACK) if math.isfinite(relative) else None
    if kind is None and relative <= allowed:
        kind = SCORES  # within the scatter that few roundings leave
    budget = reference.classes[kind or SCORES].relative
    return kind, relative / budget if budget > 0 else (0.0 if relative == 0 else math.inf)


def _incomparable(reference: Reference, answer: Array) -> str | None:
    """Why an answer cannot be compared: -inf in another place than where a query sees nothing, or no number."""
    infinite, bad = reference.infinite, ~np.isfinite(answer)
    if infinite is not None:
        misplaced = np.argwhere(np.isneginf(answer) != infinite)
        if misplaced.size:
            b, h, i, _ = misplaced[0]
            expected = "-inf" if infinite[b, h, i, 0] else "a number"
            where = f"batch {b}, head {h}, row {reference.row(int(i))}"
            return f"expected {expected} at {where}, got {answer[b, h, i, 0]:.6g}"
        bad &= ~infinite
    if not bad.any():
        return None
    first = reference.row(int(np.argwhere(bad)[:, 2].min()))
    what = "NaN" if np.isnan(answer).any() else "infinity"
    return f"{what} in {bad.sum()} of {bad.size} values, in row {first} first; every input is finite"


def _place(reference: Reference, excess: Array) -> str:
    b, h, i, c = np.unravel_index(int(np.argmax(excess)), excess.shape)
    head = "" if reference.of_block else f"head {h}, "
    return f"batch {b}, {head}row {reference.row(int(i))}, component {c}"


def _broken_fact(reference: Reference, answer: Array, error: Array) -> str | None:
    beyond = np.maximum(reference.low - answer, answer - reference.high) - reference.hull_slack
    excess = np.abs(error) - reference.bound
    if (excess <= 0).all() and (beyond <= 0).all():
        return None
    worst = beyond if (beyond > 0).any() else excess
    at = np.unravel_index(int(np.argmax(worst)), worst.shape)
    came, expected = answer[at], reference.output[at]
    where = f"at {_place(reference, worst)}: expected {expected:.6g}, got {came:.6g}"
    blank = (answer == 0).all(axis=-1) & (np.abs(reference.output) > reference.bound).any(axis=-1)
    if blank.any():
        return f"{int(blank.sum())} of {blank.size} rows are zero, {where}"
    if (beyond > 0).any():
        low, high = reference.low[at], reference.high[at]
        if low == high:
            return f"outside the values it averages: the row sees one value, {low:.6g}, {where}"
        return f"outside the values it averages, {low:.6g} to {high:.6g}, {where}"
    return f"error {abs(error[at]):.3g} above the worst case of rounding {reference.bound[at]:.3g}, {where}"


def _too_far_off(reference: Reference, relative: float, allowed: float, normalised: Array) -> str | None:
    """What of the error's size is more than rounding."""
    if relative > allowed:
        return f"relative error {relative:.3g}, at most {allowed:.3g} is rounding in {reference.dtype}"
    if normalised.max() > LARGEST:
        return (
            f"an error of {normalised.max():.3g} predicted standard deviations "
            f"(at most {LARGEST:g} is rounding) at {_place(reference, normalised)}"
        )
    return None


def systematic(dtype: str, immaterial: float | None = IMMATERIAL) -> float:
    """The relative shift that honest rows may share; `immaterial` None where nothing but the output is rounded."""
    inner = float_format("float64" if dtype == "float64" else "float32").unit_roundoff
    if immaterial is None:
        return NO_CONSTANTS * inner
    return CONSTANTS * inner + immaterial * float_format(dtype).unit_roundoff


def _lined_up(along: Sequence[tuple[Direction, str, str]], least_z: float, honest_shift: float) -> str | None:
    """The direction with which the error lines up, named by its cause only where it makes up most of the error.

    Faults of other kinds have a part along both directions too.
    """
    for one, cause, like in sorted(along, key=lambda each: -abs(each[0].z)):
        if abs(one.shift) > honest_shift and abs(one.z) > least_z:
            if one.rest < _MOST:
                return f"{cause} (z = {one.z:.0f})"
            return f"errors line up with {like}, as if it were {one.size} {one.way} (z = {one.z:.0f})"
    return None


# -- other scales and lower number formats

#: an answer is another question's where its error there is so small a part of that in its own
_NEARER = 0.1
#: by increasing roundoff, as a person knows them. TF32 rounds the inputs of products as float16 does
_FORMATS = {"float32": "float32", "float16": "float16 or TF32", "bfloat16": "bfloat16"}
#: standard errors: another fault passes them once in a thousand, as of `DIRECTED`
_SURELY = 4.0


def explained(
    inputs: Inputs, answer: NDArray[Any], exact: Reference, fault: str, rows: Sequence[int] | None = None
) -> str:
    """The `fault` of an answer to `inputs`, (batch, heads, rows, value_dim), with the lower format that explains it.

    Or, in its place, that the answer is right for 1/√head_dim, 1/head_dim or 1 where another scale was asked for.
    exact : the inputs' own reference at the query rows `rows`. A format explains the answer where that is right for
    inputs rounded to it, by its budget, and where its error has moved along with those inputs: by as much as their
    rounding moves the truth (a shift of 1; of 0 for any other fault), and more surely than by chance.
    """
    if inputs.block is not None or not np.isfinite(answer).all():
        return fault
    for other in (inputs.query.shape[3] ** -0.5, 1.0, 1 / inputs.query.shape[3]):
        reference = refer(inputs.with_(scale=other, output_gradient=None), rows)[OUTPUT]
        # where the scale hardly matters, both are as near
        nearer = np.abs(answer - reference.output).max() < _NEARER * np.abs(answer - exact.output).max()
        if nearer and weigh(reference, answer).passed:
            return f"it is right for a scale of {other:.3g}, where {inputs.scale:.3g} was asked for"
    for dtype, said in _FORMATS.items():
        if lower(inputs.dtype, dtype) is None:
            continue
        rounded = inputs.cast(dtype).with_(output_gradient=None)
        if not all(np.isfinite(one).all() for one in (rounded.query, rounded.key, rounded.value)):
            continue
        reference = refer(rounded, rows)[OUTPUT]
        against = weigh(reference, answer, directions=DIRECTED_SHARED, immaterial=IMMATERIAL_ANYWHERE)
        rms = np.maximum(reference.lenient.rms, float_format(dtype).smallest_subnormal)
        moved = directed(answer - exact.output, reference.output - exact.output, rms, reference.shared)
        if against.passed and abs(moved.shift - 1) < 0.5 and moved.z > _SURELY:
            return (
                f"{fault}; this is the error of computing in {said}: set the precision that its library computes in, "
                "or let the backend say it (COMPUTES_IN)"
            )
    return fault
