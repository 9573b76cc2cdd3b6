"""The problem that a judge gives to every candidate: how inputs are drawn, and when an answer is wrong.

`Attention` is a workload of attnlab. Its exact answers and its error budget are derived here, in float64. `Module` is
what a PyTorch module computes, as in KernelBench. Its exact answers come from the reference's own module in float64, in
a sandbox that no candidate shares. Its error budget is a multiple of the error of the reference itself.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from attnlab import system
from attnlab.correctness.expected import expect
from attnlab.correctness.reference import blocks
from attnlab.correctness.weighing import anywhere, relative_error, weigh
from attnlab.errors import Unavailable
from attnlab.judge.candidates import REFERENCE, Candidate
from attnlab.judge.inside import Limits, Order
from attnlab.judge.memory import Array
from attnlab.judge.sandbox import Sandbox
from attnlab.judge.score import CAUGHT
from attnlab.libraries.library import open_library
from attnlab.processes import Failed
from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import FORMATS, round_to
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

#: least number of rows checked in a call; a call with 5 % wrong rows passes with probability 0.95^96 = 0.7 %
ROWS = 96
#: an error passes if it is at most this many budgets of other inputs of its kind, or at most this many of its own
_SURE, _FAR = 4.0, 8.0
#: least and largest relative error taken as the reference's rounding; a module whose answers vary has a larger one
_LEAST_ERROR, _NO_ROUNDING = 4 * 2.0**-23, 2.0**-16
#: the number of batch elements of a module's answer that are checked
_ELEMENTS = 8
#: seconds that the reference's module may take in float64
_EXACT_SECONDS = 120.0


def _hot_key(*arrays: Array, scale: float, rng: np.random.Generator) -> Sequence[Array]:
    keys = arrays[len(arrays) // 2]
    keys[..., int(rng.integers(keys.shape[-2])), :] *= 120
    return arrays


def _runs(*arrays: Array, scale: float, rng: np.random.Generator) -> Sequence[Array]:
    keys = arrays[len(arrays) // 2]
    length = int(rng.integers(2, max(3, keys.shape[-2] // 4)))
    keys[...] = keys[..., np.arange(keys.shape[-2]) // length * length, :]
    arrays[0][...] *= 2
    return arrays


def _zeros(*arrays: Array, scale: float, rng: np.random.Generator) -> Sequence[Array]:
    arrays[int(rng.integers(max(1, len(arrays) - 1)))][...] *= 0
    return arrays


#: how the inputs of a call may be drawn; the middle array has the keys. Only calls on normal inputs are timed, so a
#: shortcut for easy inputs gains nothing. One hot key has scores of several hundred; exp overflows in float32 above 88
NORMAL = "normal"
_KINDS: dict[str, Callable[..., Sequence[Array]]] = {
    NORMAL: lambda *arrays, scale, rng: arrays,
    "one hot key": _hot_key,
    "runs of equal scores": _runs,
    "zeros": _zeros,
}
Share = tuple[float, str | None] | None
#: distributions whose products may overflow in float16
_HUGE = ("above_1000", "below_minus_50000")


class _Asked:
    """The base of a problem: the shapes and the number format of its inputs, and the shape of its output.

    A problem also has `choose` and `check`. `choose` returns an index of the parts to be checked of the outputs of
    `count` calls. `check` raises Failed if the parts `got` of one call are wrong for its `inputs`. Its `of` is the
    candidate's digest, and `at` is the last part of the index, for this call. If `strict`, it uses only the budget of
    these inputs, and returns the share of it that the error takes.

    loading : the order that loads a candidate. told : the problem as records show it. forms : the forms of candidates
    that it accepts. needed_bytes : the memory that a candidate may take, if that is more than the default. kinds : of
    inputs; all but normal ones are checked and not timed. boxes : sandboxes of the problem itself.
    """

    def __init__(
        self, loading: Order, shapes: Sequence[Sequence[int]], output: Sequence[int], told: dict[str, Any]
    ) -> None:
        self.loading, self.dtype, self.form = loading, loading.dtype, FORMATS[loading.dtype]
        self.shapes, self.output_shape, self.told = shapes, tuple(output), told
        self.label = f"inputs {', '.join(map(str, map(tuple, shapes)))}, {loading.dtype}"
        self.forms, self.boxes = ["backend", "function", "ModelNew"], list[Sandbox]()
        # CUDA itself takes much memory of the host
        self.needed_bytes = system.free_bytes() // 2 if loading.device == "cuda" else 0
        self.kinds, self.scale, self.code = dict(_KINDS), 1.0, f"<i{self.form.itemsize}"
        self.input_bytes = self.form.itemsize * sum(map(math.prod, shapes))
        self.output_bytes = self.form.itemsize * math.prod(output)

    def require(self, one: Candidate) -> None:
        """Raises ValueError if this candidate cannot be given the problem."""
        device, wrong = self.loading.device, ""
        if one.form not in self.forms:
            wrong = f"expected {' or '.join(self.forms)}, got {one.form}; judge it apart"
        elif device == "cpu" and one.device != device:
            wrong = "expected a kernel for the CPU, got Triton; judge with --device cuda"
        elif device == "cuda" and one.library != "torch":
            wrong = f"on CUDA expected tensors of PyTorch, got {one.library}"
        if wrong:
            raise ValueError(f"{one.name}: {wrong}")

    def draw(self, kind: str) -> tuple[list[Array], list[Array]]:
        """New inputs of a call, and their bits. Each call has a new generator, so no answer reveals the next inputs."""
        rng = np.random.Generator(np.random.SFC64(secrets.randbits(256)))
        arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in self.shapes]
        inputs = [round_to(one, self.dtype) for one in self.kinds[kind](*arrays, scale=self.scale, rng=rng)]
        return inputs, [np.ascontiguousarray(one, self.form).view(self.code) for one in inputs]


class Attention(_Asked):
    """A workload of attnlab. Some rows of every head are checked."""

    def __init__(self, workload: Workload) -> None:
        shapes = [workload.shape_of(one) for one in GRADIENTS]
        loading = Order("load", workload=workload, dtype=workload.dtype, device=workload.device)
        super().__init__(loading, shapes, workload.shape_of(OUTPUT), workload.to_dict())
        self.workload, self._visible = workload, workload.masked.array(workload.shape)
        self.label, self.scale = workload.label, workload.scale
        self.needed_bytes += 4 * workload.score_bytes + 8 * (self.input_bytes + self.output_bytes)
        self._rng, self._budgets = np.random.default_rng(), dict[str, float]()
        # the distributions of `attnlab check`, at the shape of this workload
        unfit = (NORMAL, *(_HUGE if workload.dtype == "float16" else ()))
        self.kinds |= {name: one for name, one in DISTRIBUTIONS.items() if name not in unfit}

    def choose(self, count: int) -> tuple[Array, ...]:
        """Random query rows, drawn for each call and head."""
        w = self.workload
        rows = max(2, math.ceil(ROWS / (w.batch * w.heads)))
        drawn = self._rng.integers(w.queries, size=(count, w.batch, w.heads, rows))
        return (*np.ogrid[:count, : w.batch, : w.heads, :1][:3], drawn)

    def check(self, of: str, kind: str, inputs: list[Array], at: Array, got: Array, strict: bool) -> Share:
        """See `_Asked`. An error that is small by the budget of earlier inputs of this kind passes at once."""
        cut = self._cut(inputs, at)
        exact = np.empty(got.shape)
        for block in blocks(cut):
            exact[block.at] = block.output
        if not strict and relative_error(got - exact, exact) <= _SURE * self._budgets.get(kind, -1.0):
            return None
        truth = expect(cut)[OUTPUT]
        judged = weigh(truth, got.astype(cut.query.dtype), **anywhere(OUTPUT))
        error, budget = judged.relative_error, max(judged.budget, 1e-300)
        if truth.first_order:
            self._budgets.setdefault(kind, judged.budget)
        if not judged.passed and (strict or not truth.first_order or not error <= _FAR * budget):
            raise Failed(CAUGHT, f"{kind}: {judged.reason}, in rows chosen after the call")
        return (error / budget, judged.kind) if strict else None

    def _cut(self, inputs: list[Array], rows: Array) -> Inputs:
        """The inputs with only these query rows, which differ from head to head."""
        w, (query, key, value) = self.workload, inputs
        mask = Mask()
        if self._visible is not None:
            seen = np.broadcast_to(self._visible, w.shape)
            mask = Mask((Given(np.take_along_axis(seen, rows[..., None], axis=2)),))
        query = np.take_along_axis(query, rows[..., None], axis=2)
        return Inputs(query, key, value, w.dtype, w.scale, mask=mask, softcap=w.softcap)


class Described(msgspec.Struct):
    """What a reference in KernelBench's form says: constructor arguments, shapes and dtypes of inputs and output."""

    init: list[Any]
    shapes: list[Annotated[list[int], msgspec.Meta(min_length=2)]]
    output: list[int]
    dtypes: list[Literal["float32"]]


class Module(_Asked):
    """A PyTorch module. Some batch elements of its answer are checked; all, if there are at most eight.

    exact : a sandbox with the reference's module in float64.
    """

    def __init__(self, reference: Candidate, told: Described, loading: Order, exact: Sandbox) -> None:
        super().__init__(loading, told.shapes, told.output, msgspec.to_builtins(told))
        self.needed_bytes = exact.limits.data
        self.forms, self.boxes, self._rng = ["ModelNew"], [exact], np.random.default_rng()
        self._digest, self._errors = reference.digest, dict[str, float]()
        self._batch = {shape[0] for shape in (*self.shapes, self.output_shape)}

    def choose(self, count: int) -> tuple[Array, ...]:
        """Random batch elements; all, if inputs and output differ in their first dimension."""
        size = self.output_shape[0]
        few = min(size, _ELEMENTS) if len(self._batch) == 1 else size
        every = np.tile(np.arange(size), (count, 1))
        return np.arange(count)[:, None], self._rng.permuted(every, axis=1)[:, :few]

    def check(self, of: str, kind: str, inputs: list[Array], at: Array, got: Array, strict: bool) -> Share:
        """See `_Asked`. The budget comes from the errors of the reference, which is checked first."""
        some = [(one[at] if len(self._batch) == 1 else one)[None].astype(np.float64) for one in inputs]
        (exact,) = self.boxes
        try:
            (output,) = exact.answer(Order("call"), some, "<f8", (1, *got.shape), _EXACT_SECONDS)
        except Failed as fault:
            raise Unavailable(f"the reference cannot be computed in float64: {fault}") from None
        error = relative_error(got - output, output)
        if of == self._digest:
            self._errors[kind] = max(self._errors.get(kind, 0.0), min(error, _NO_ROUNDING))
        budget = _FAR * max(_LEAST_ERROR, self._errors.get(kind, 0.0))
        if not error <= budget:
            wrong = f"relative error {error:.2g}, at most {budget:.2g} is rounding, in parts chosen after the call"
            raise Failed(CAUGHT, f"{kind}: {wrong}")
        return (error / budget, "full precision inside") if strict else None


Problem = Attention | Module


def pose(
    reference: Candidate, workload: Workload | None, trust: bool, seconds: float
) -> tuple[Problem, Candidate]:
    """The problem for all candidates, and the reference in the form in which it runs.

    A reference in KernelBench's form sets the shapes itself, and takes only the device of a workload. Raises ValueError
    for a reference that cannot be used, and for a workload that is not judged; Unavailable for a missing device.
    """
    device = workload.device if workload else "cpu"
    open_library("torch" if device == "cuda" else "numpy", device)
    if reference.form != REFERENCE:
        asked = Attention(judged(workload or Workload()))
        asked.require(reference)
        return asked, reference
    if workload not in (None, Workload(device="cuda")):
        raise ValueError(f"{reference.name} has a shape of its own; leave out options of another")
    expected = f"{reference.name}: expected Model, get_inputs and get_init_inputs of attention in float32"
    limits = Limits(data=max(Limits().data, system.free_bytes() // 2))
    box, against = Sandbox("torch", 2**31, limits, trust), replace(reference, form="ModelNew")
    try:
        unnamed = replace(against, name="")
        told = msgspec.convert(box.ask(Order("describe", candidate=unnamed), seconds).plain, Described)
        loading = Order("load", dtype="float64", init=told.init, seed=secrets.randbits(31))
        box.ask(msgspec.structs.replace(loading, candidate=unnamed), seconds)
        box.stop()
        loading.dtype, loading.device = "float32", device
        return Module(against, told, loading, box), against
    except BaseException as fault:
        box.close()
        if not isinstance(fault, Failed | msgspec.ValidationError):
            raise
        raise ValueError(f"{expected}; {fault}") from None


def judged(workload: Workload) -> Workload:
    """Return `workload`. Raises ValueError if the judge does not take it."""
    for name in ("d_model", "bias", "sinks", "storage", "direction", "distribution", "layout"):
        plain, got = getattr(Workload, name), getattr(workload, name)
        if got != plain:
            raise ValueError(f"the judge takes {name} {plain} alone, got {got}; attnlab compare takes others")
    if workload.mask == "given":
        raise ValueError("the judge takes a mask that has a name, got an array; name one")
    return workload
