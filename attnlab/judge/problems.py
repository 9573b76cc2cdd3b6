"""What is asked of every candidate of a judge: how inputs are drawn, and what makes an answer wrong.

`Attention` asks for a workload of attnlab: its truth and its error budget are derived here, in float64. `Module` asks
for what a PyTorch module computes, as KernelBench does: its truth is what the reference's own module computes in
float64, in a sandbox that no candidate shares, and its budget is a multiple of the error that the reference itself
makes.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.correctness.expected import expect
from attnlab.correctness.reference import blocks
from attnlab.correctness.weighing import anywhere, weigh
from attnlab.errors import Unavailable
from attnlab.judge.candidates import REFERENCE, Candidate
from attnlab.judge.inside import Limits, Order
from attnlab.judge.record import Caught, Record
from attnlab.judge.sandbox import Sandbox
from attnlab.processes import Failed
from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import DTYPES, FORMATS, round_to
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

Array = NDArray[Any]
#: rows of every call that are checked, over all heads: one that leaves out 5 % of its rows passes with 0.95^96 = 0.7 %
ROWS = 96
#: an error of up to so many budgets is rounding beyond doubt; one above is looked at with the budget of its own inputs
_SURE, _FAR = 4.0, 8.0
#: relative errors of the reference's module in float32: at least, and at most, lest it be no function of its inputs
_LEAST_ERROR, _NO_ROUNDING = 4 * 2.0**-23, 2.0**-16
#: of a module's answer so many batch elements are checked
_ELEMENTS = 8
#: seconds of the reference's module in float64
_EXACT_SECONDS = 120.0


def _hot_key(arrays: list[Array], rng: np.random.Generator) -> None:
    one = arrays[len(arrays) // 2]
    one[..., int(rng.integers(one.shape[-2])), :] *= 120


def _runs(arrays: list[Array], rng: np.random.Generator) -> None:
    at = len(arrays) // 2
    tokens = arrays[at].shape[-2]
    length = int(rng.integers(2, max(3, tokens // 4)))
    arrays[0] *= 2
    arrays[at] = arrays[at][..., np.arange(tokens) // length * length, :]


def _zeros(arrays: list[Array], rng: np.random.Generator) -> None:
    arrays[int(rng.integers(max(1, len(arrays) - 1)))] *= 0


def _large(arrays: list[Array], rng: np.random.Generator) -> None:
    arrays[0] *= 6


#: how the inputs of a call may be drawn; the middle array has the keys. Speed is that of normal ones: a shortcut for
#: easy inputs gains nothing. One hot key has scores of some hundreds, far above 88, where exp overflows in float32
NORMAL = "normal"
_ODD: dict[str, Callable[[list[Array], np.random.Generator], None]] = {
    "large scores": _large,
    "one hot key": _hot_key,
    "runs of equal scores": _runs,
    "zeros": _zeros,
}
#: distributions of the daily questions whose products float16 does not hold
_HUGE = ("above_1000", "below_minus_50000")


class _Asked:
    """Inputs of these shapes and this number format, and an output of one shape.

    A problem also has `choose` (what is looked at of the outputs of so many calls), `taken` (a copy of that), and
    `check`, which raises Caught where it is not what the inputs of a call ask for; `strict` holds it against the budget
    of these very inputs, which goes to the record.

    told : what records say of it. A candidate is loaded by the order `loading`, completed by its text, and may take
    `needed_bytes` of memory. fixed : it has one shape, and candidates need answer no other. odd : kinds of inputs that
    are checked and not timed.
    """

    def __init__(
        self, dtype: str, shapes: Sequence[Sequence[int]], output: Sequence[int], told: dict[str, Any]
    ) -> None:
        self.dtype, self.shapes, self.output_shape, self.told = dtype, shapes, tuple(output), told
        self.form, self.loading = FORMATS[dtype], Order("load", dtype=dtype)
        self.label = f"inputs {', '.join(map(str, map(tuple, shapes)))}, {dtype}"
        self.needed_bytes, self.fixed, self.odd = 0, False, list(_ODD)
        self.input_bytes = self.form.itemsize * sum(map(math.prod, shapes))
        self.output_bytes = self.form.itemsize * math.prod(output)

    def draw(self, kind: str, count: int) -> list[Array]:
        """Fresh inputs of so many calls, (count, *shape) each: no generator outlives a call, so that no answer tells
        of the next."""
        rng = np.random.Generator(np.random.SFC64(secrets.randbits(256)))
        arrays = [rng.standard_normal((count, *shape), dtype=np.float32) for shape in self.shapes]
        if kind in _ODD:
            _ODD[kind](arrays, rng)
        return [round_to(one, self.dtype) for one in arrays]

    def admit(self, candidate: Candidate) -> None:
        """Raises ValueError for a candidate in a form that cannot answer this."""
        if candidate.form == REFERENCE:
            raise ValueError(
                f"{candidate.name}: expected a class ModelNew, got a reference; --reference takes it"
            )

    def close(self) -> None:
        """Nothing is asked any more."""


class Attention(_Asked):
    """A workload: rows of every head are checked."""

    def __init__(self, workload: Workload) -> None:
        shapes = [workload.shape_of(one) for one in GRADIENTS]
        super().__init__(workload.dtype, shapes, workload.shape_of(OUTPUT), workload.to_dict())
        self.workload, self._visible = workload, workload.masked.array(workload.shape)
        self.loading.workload, self.label = workload, workload.label
        self.needed_bytes = 4 * workload.score_bytes + 8 * (self.input_bytes + self.output_bytes)
        self._rng, self._budgets = np.random.default_rng(), dict[str, float]()
        small = workload.dtype == "float16"
        self.odd += [one for one in DISTRIBUTIONS if one != NORMAL and not (small and one in _HUGE)]

    def draw(self, kind: str, count: int) -> list[Array]:
        """As of `Problem`; the distributions of the daily questions as well, at the shape that is asked for."""
        drawn = super().draw(kind, count)
        if kind == NORMAL or kind not in DISTRIBUTIONS:
            return drawn
        rng = np.random.Generator(np.random.SFC64(secrets.randbits(256)))
        query, key, value = drawn
        found = DISTRIBUTIONS[kind](query, key, value, self.workload.scale, rng)
        return [round_to(one, self.dtype) for one in found]

    def choose(self, count: int) -> Array:
        """Query rows, other ones of each head: (count, batch, heads, rows)."""
        w = self.workload
        rows = max(2, math.ceil(ROWS / (w.batch * w.heads)))
        return self._rng.integers(w.queries, size=(count, w.batch, w.heads, rows))

    def taken(self, outputs: Array, chosen: Array) -> Array:
        """(count, batch, heads, rows, value_dim)."""
        return np.take_along_axis(outputs, chosen[..., None], axis=3)

    def check(
        self, record: Record, kind: str, inputs: list[Array], chosen: Array, got: Array, strict: bool
    ) -> None:
        """As of `_Asked`."""
        cut = self._cut(inputs, chosen)
        exact = np.empty(got.shape)
        for block in blocks(cut):
            exact[block.at] = block.output
        error = float(np.linalg.norm(got - exact) / max(float(np.linalg.norm(exact)), 1e-300))
        if not strict and error <= _SURE * self._budgets.get(kind, -1.0):
            return
        truth = expect(cut)[OUTPUT]
        judged = weigh(truth, got.astype(cut.query.dtype), **anywhere(OUTPUT))
        if truth.first_order:
            self._budgets.setdefault(kind, judged.budget)
        share = judged.relative_error / max(judged.budget, 1e-300)
        if truth.first_order and not share <= _FAR:
            raise _not_that(kind, judged.relative_error, judged.budget)
        if not truth.first_order and not judged.passed:
            raise Caught(f"{kind}: {judged.reason}")
        if strict:
            record.budget, record.precision = max(record.budget or 0.0, share), judged.kind
            if not judged.passed:
                raise Caught(f"{kind}: {judged.reason}")

    def _cut(self, inputs: list[Array], rows: Array) -> Inputs:
        """What these rows ask, which differ from head to head."""
        w, (query, key, value) = self.workload, inputs
        mask = Mask()
        if self._visible is not None:
            seen = np.broadcast_to(self._visible, w.shape)
            mask = Mask((Given(np.take_along_axis(seen, rows[..., None], axis=2)),))
        query = np.take_along_axis(query, rows[..., None], axis=2)
        return Inputs(query, key, value, w.dtype, w.scale, mask=mask, softcap=w.softcap)


class Described(msgspec.Struct):
    """What a reference in KernelBench's form says: constructor arguments, and what goes in and comes out."""

    init: list[Any]
    shapes: list[list[int]]
    output: list[int]
    dtypes: list[str]


class Module(_Asked):
    """A module of PyTorch: batch elements of its answer are checked, all where they are few.

    It owns `exact`, a sandbox with the reference's module in float64.
    """

    def __init__(self, reference: Candidate, told: Described, loading: Order, exact: Sandbox) -> None:
        super().__init__("float32", told.shapes, told.output, msgspec.to_builtins(told))
        self.loading, self.needed_bytes, self.fixed = loading, exact.limits.data, True
        self._exact, self._rng = exact, np.random.default_rng()
        self._digest, self._errors = reference.digest, dict[str, float]()
        self._batch = {shape[0] for shape in (*self.shapes, self.output_shape)}

    def admit(self, candidate: Candidate) -> None:
        """As of `_Asked`."""
        if candidate.form != "model":
            raise ValueError(
                f"{candidate.name}: expected a class ModelNew, as the reference has Model; got none"
            )

    def choose(self, count: int) -> Array:
        """Batch elements; all where inputs and output do not have the same."""
        size = self.output_shape[0]
        few = min(size, _ELEMENTS) if len(self._batch) == 1 else size
        return np.stack([self._rng.permutation(size)[:few] for _ in range(count)])

    def taken(self, outputs: Array, chosen: Array) -> Array:
        """(count, elements, ...)."""
        return np.stack([one[at] for one, at in zip(outputs, chosen, strict=True)])

    def check(
        self, record: Record, kind: str, inputs: list[Array], chosen: Array, got: Array, strict: bool
    ) -> None:
        """As of `_Asked`. The reference's own errors make the budget, and its answers are the first."""
        some = [one[chosen] if len(self._batch) == 1 else one for one in inputs]
        box = self._exact
        box.clear()
        places = []
        for array in some:
            view, place = box.lay("<f8", array.shape)
            view[...] = array
            places.append(place)
        output, place = box.lay("<f8", got.shape)
        try:
            box.ask(Order("call", slots=[[*places, place]]), _EXACT_SECONDS)
            box.stop()
        except Failed as fault:
            raise Unavailable(f"the reference cannot be computed in float64: {fault}") from None
        norm = max(float(np.linalg.norm(output)), 1e-300)
        error = float(np.linalg.norm(got - output)) / norm
        if record.digest == self._digest:
            self._errors[kind] = max(self._errors.get(kind, 0.0), min(error, _NO_ROUNDING))
        budget = _FAR * max(_LEAST_ERROR, self._errors.get(kind, 0.0))
        if not error <= budget:
            raise _not_that(kind, error, budget)
        if strict:
            record.budget, record.precision = (
                max(record.budget or 0.0, error / budget),
                "full precision inside",
            )

    def close(self) -> None:
        """End the reference's sandbox."""
        self._exact.close()


Problem = Attention | Module


def pose(
    reference: Candidate, workload: Workload | None, *, trust: bool, seconds: float
) -> tuple[Problem, Candidate]:
    """What candidates are asked, and the candidate that they are held against.

    A reference in KernelBench's form has its own shape: three arrays (batch, heads, length, dim) and no parameters are
    a workload. Raises ValueError where it is not attention, and for a workload that is not judged or not the same.
    """
    if reference.form != REFERENCE:
        return Attention(judged(workload or Workload())), reference
    expected = f"{reference.name}: expected Model, get_inputs and get_init_inputs of attention on the CPU"
    limits = Limits(data=max(Limits().data, system.free_bytes() // 2))
    box, against = (
        Sandbox("torch", 2**31, limits=limits, trust=trust),
        replace(reference, form="model", entry="Model"),
    )
    posed: Problem | None = None
    try:
        place = box.placed(reference.source)
        told = msgspec.convert(box.ask(Order("describe", places=[place]), seconds).plain, Described)
        dtype = told.dtypes[0]
        loading = Order("load", dtype=dtype, init=told.init, seed=secrets.randbits(31))
        if len(set(told.dtypes)) > 1 or dtype not in DTYPES:
            raise ValueError(f"{expected}, in one number format; got {', '.join(told.dtypes)}")
        if [len(one) for one in told.shapes] == [4, 4, 4] and not told.init:
            (batch, heads, queries, dim), (_, kv_heads, keys, _), (*_, value_dim) = told.shapes
            how: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries}
            own = Workload(**how, keys=keys, head_dim=dim, value_dim=value_dim, dtype=dtype)
            if workload not in (None, own):
                raise ValueError(
                    f"{reference.name} asks for {own.label}; leave out the options of another shape"
                )
            posed = Attention(judged(own))
            posed.fixed, posed.loading = True, msgspec.structs.replace(loading, workload=own)
            return posed, against
        if workload is not None or dtype != "float32":
            raise ValueError(
                f"{reference.name} has a shape of its own, in float32; leave out options of another"
            )
        order = msgspec.structs.replace(loading, places=[place], dtype="float64", form="model", entry="Model")
        box.ask(msgspec.structs.replace(order, library="torch"), seconds)
        box.stop()
        posed = Module(against, told, loading, box)
        return posed, against
    except (Failed, msgspec.ValidationError) as fault:
        raise ValueError(f"{expected}; {fault}") from None
    finally:
        if not isinstance(posed, Module):
            box.close()


def judged(workload: Workload) -> Workload:
    """The workload itself. Raises ValueError for one that is not judged."""
    plain = Workload(queries=workload.queries, keys=workload.keys)
    for name in ("d_model", "device", "bias", "sinks", "storage", "direction", "distribution", "layout"):
        if getattr(workload, name) != getattr(plain, name):
            raise ValueError(
                f"the judge takes {name} {getattr(plain, name)} alone, got {getattr(workload, name)}; "
                "attnlab compare takes the others"
            )
    if workload.mask == "given":
        raise ValueError("the judge takes a mask that has a name, got an array; name one")
    return workload


def _not_that(kind: str, error: float, budget: float) -> Caught:
    return Caught(
        f"{kind}: an answer is not that of its inputs: relative error {error:.2g} in parts chosen after the call, "
        f"at most {budget:.2g} is rounding"
    )
