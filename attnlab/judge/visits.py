"""Strict visits: inputs of its own for every call, the judge's clock around it, rows to check that are chosen later.

A turn is some calls, one after the other. While every process of the sandbox is stopped the judge draws the inputs of
a call from the system's randomness, keeps a copy, and fills the output with NaN. Its clock starts before the sandbox
may run and stops after the rows that it chose have been copied. So whatever a candidate does with these inputs is on
the clock, and no inputs of another call are there. It does not know how many calls there are.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.expected import expect
from attnlab.correctness.reference import blocks
from attnlab.correctness.weighing import anywhere, weigh
from attnlab.judge.candidates import Candidate
from attnlab.judge.inside import Order, Place
from attnlab.judge.record import Record, escaped
from attnlab.judge.sandbox import Sandbox
from attnlab.processes import Failed
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import FORMATS, round_to
from attnlab.workload.result import Measurement
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

Array = NDArray[Any]
Draw = Callable[..., tuple[Array, Array, Array]]
#: rows of every call that are checked, over all heads: one that leaves out 5 % of its rows passes with 0.95^96 = 0.7 %
ROWS = 96
#: an error of up to so many budgets is rounding beyond doubt; one above is looked at with the budget of its own inputs
_SURE, _FAR = 4.0, 8.0
#: a turn lasts about so long; messages of one, at most, calls of a message, and bytes of the arrays of a turn
_TURN_SECONDS, _MOST_CALLS, _MOST_AT_ONCE, _MOST_BYTES = 0.02, 8, 100, 2**27
#: calls shorter than so many empty ones are asked for several at a time
EMPTY_CALLS = 10.0
#: seconds of the calls before the first turn, which are checked and not timed; and for one answer
_WARM_SECONDS, _ANSWER_SECONDS = 0.1, 20.0
#: a round of visit v has the number v · this + its place
_ROUNDS = 1000


def _hot_key(q: Array, k: Array, v: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    at = int(rng.integers(k.shape[2]))
    k[:, :, at] *= 12
    return q, k, v


def _runs(q: Array, k: Array, v: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    length = int(rng.integers(2, max(3, k.shape[2] // 4)))
    return q * 2, k[:, :, np.arange(k.shape[2]) // length * length], v


def _zeros(q: Array, k: Array, v: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    return (q * 0, k, v) if rng.random() < 0.5 else (q, k * 0, v)


#: how the inputs of a call may be drawn. Speed is that of normal ones: a shortcut for easy inputs gains nothing
DRAWS: dict[str, Draw] = {
    "normal": lambda q, k, v, rng: (q, k, v),
    "large scores": lambda q, k, v, rng: (q * 6, k, v),
    "one hot key": _hot_key,
    "runs of equal scores": _runs,
    "zeros": _zeros,
}
NORMAL = "normal"
ODD = tuple(one for one in DRAWS if one != NORMAL)


class Caught(Exception):
    """A candidate's answer is not what its inputs ask for, or it did what nobody asked; the message is the evidence."""


@dataclass
class Seat:
    """One candidate in its sandbox, and what its visits found.

    seconds : of a call, as it was first seen. turns : by round, seconds of a call.
    """

    candidate: Candidate
    sandbox: Sandbox
    record: Record
    seconds: float = 0.0
    turns: list[tuple[int, float]] = field(default_factory=list)

    @property
    def racing(self) -> bool:
        """Whether nothing has ended its race."""
        return self.record.status == "judged"

    def attempt(self, step: Callable[..., object], *given: Any) -> None:
        """Take a step; what goes wrong ends its race."""
        if not self.racing:
            return
        try:
            step(*given)
        except (Caught, Failed) as fault:
            found, wrong = self.record, isinstance(fault, Caught)
            found.status = "failed" if not wrong else "caught" if found.correct else "wrong"
            found.reason = escaped(str(fault))
            found.violations += [found.reason] if found.status == "caught" else []
            found.correct = False
            self.sandbox.close()

    def latency(self, visits: Sequence[int]) -> Measurement | None:
        """The turns of these visits."""
        kept = [(number, seconds) for number, seconds in self.turns if number // _ROUNDS in visits]
        if not kept:
            return None
        rounds, samples = zip(*kept, strict=True)
        numbers = tuple(one // _ROUNDS for one in rounds)
        return Measurement("latency", "s", samples, {"round": rounds, "visit": numbers})


@dataclass(frozen=True)
class _Asked:
    """One call as the judge knows it: its own copy of the inputs, and where the answer will lie."""

    kind: str
    inputs: Inputs
    places: list[Place]
    output: Array


class Visits:
    """Makes turns and visits on one workload, and checks what comes of them."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._visible = workload.masked.array(workload.shape)
        self._budgets: dict[str, float] = {}
        self.empty_seconds = 0.0
        self._slot_bytes = workload.input_bytes + workload.output_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a sandbox needs."""
        return 2**28 + 2 * max(_MOST_BYTES, 3 * self._slot_bytes)

    # -- before the clock

    def open(self, seat: Seat, seconds: float) -> None:
        """Start a visit: a fresh process that has loaded the candidate. Raises Failed."""
        seat.sandbox.ready()
        seat.sandbox.clear()
        text = seat.candidate.source.encode()
        array, place = seat.sandbox.lay("|u1", (max(1, len(text)),))
        array[: len(text)] = np.frombuffer(text, np.uint8)
        one, started = seat.candidate, perf_counter()
        how: dict[str, Any] = {"form": one.form, "entry": one.entry, "library": one.library}
        seat.sandbox.ask(Order("load", places=[place], workload=self.workload, **how), seconds)
        seat.record.setup_seconds = seat.record.setup_seconds or perf_counter() - started

    def draw(self, kind: str) -> Inputs:
        """Fresh inputs: no generator outlives a call, so that no answer tells of the next."""
        rng, w = np.random.Generator(np.random.SFC64(secrets.randbits(256))), self.workload
        arrays = [rng.standard_normal(w.shape_of(one), dtype=np.float32) for one in GRADIENTS]
        q, k, v = (round_to(one, w.dtype) for one in DRAWS[kind](*arrays, rng))
        return Inputs(q, k, v, dtype=w.dtype, scale=w.scale, mask=w.masked, softcap=w.softcap)

    def _asked(self, seat: Seat, kind: str) -> _Asked:
        inputs, form = self.draw(kind), FORMATS[self.workload.dtype]
        places = []
        for array in (inputs.query, inputs.key, inputs.value):
            view, place = seat.sandbox.lay(f"<i{form.itemsize}", array.shape)
            view[...] = np.ascontiguousarray(array.astype(form, copy=False)).view(view.dtype)
            places.append(place)
        output, place = seat.sandbox.lay(f"<i{form.itemsize}", self.workload.shape_of(OUTPUT))
        return _Asked(kind, inputs, [*places, place], output.view(form))

    # -- on the clock

    def turn(self, seat: Seat, kinds: Sequence[str], at_once: int = 1, strict: bool = False) -> float:
        """Seconds of a call, each of inputs of these kinds. Raises Caught, and Failed.

        at_once : calls that one message asks for. strict : hold one of them against the budget of its own inputs.
        """
        held = secrets.randbelow(len(kinds)) if strict else -1
        seconds = 0.0
        for start in range(0, len(kinds), at_once):
            seconds += self._message(seat, kinds[start : start + at_once], held - start)
        return seconds / len(kinds)

    def _message(self, seat: Seat, kinds: Sequence[str], held: int = -1) -> float:
        """Seconds from the moment when the sandbox may run until the answers to one message are there and copied."""
        box, rng, w = seat.sandbox, np.random.default_rng(), self.workload
        count = max(2, math.ceil(ROWS / (w.batch * w.heads)))  # rows, other ones of each head
        box.clear()
        asked = [self._asked(seat, kind) for kind in kinds]
        order = Order("call", slots=[one.places for one in asked])
        started = perf_counter()
        box.go_on()
        box.send(order)
        reply = box.receive(_ANSWER_SECONDS)
        # chosen now, and copied before the clock stops
        rows = [rng.integers(w.queries, size=(w.batch, w.heads, count)) for _ in asked]
        taken = [
            np.take_along_axis(call.output, at[..., None], axis=2)
            for call, at in zip(asked, rows, strict=True)
        ]
        seconds = perf_counter() - started
        box.checked(reply)
        box.stop()
        if box.unasked():
            raise Caught("it sent a message that nobody asked for")
        for number, call in enumerate(asked):
            self._check(seat, call, rows[number], taken[number], number == held)
        return seconds

    def _check(self, seat: Seat, call: _Asked, rows: NDArray[np.intp], copied: Array, strict: bool) -> None:
        """Raises Caught where an answer is not that of its inputs."""
        if not all(np.isfinite(one.astype(np.float32)).all() for one in (call.output, copied)):
            raise Caught(f"{call.kind}: numbers of an answer were not there when it said that it was done")
        cut, found = self._cut(call.inputs, rows), copied.astype(np.float64)
        exact = np.empty(found.shape)
        for block in blocks(cut):
            exact[block.at] = block.output
        error = float(np.linalg.norm(found - exact) / max(float(np.linalg.norm(exact)), 1e-300))
        if not strict and error <= _SURE * self._budgets.get(call.kind, -1.0):
            return
        truth = expect(cut)[OUTPUT]
        judged = weigh(truth, copied.astype(cut.query.dtype), **anywhere(OUTPUT))
        if truth.first_order:
            self._budgets.setdefault(call.kind, judged.budget)
        share = judged.relative_error / max(judged.budget, 1e-300)
        if truth.first_order and not share <= _FAR:
            raise Caught(
                f"{call.kind}: an answer is not that of its inputs: relative error {judged.relative_error:.2g} "
                f"in rows chosen after the call, at most {judged.budget:.2g} is rounding"
            )
        if strict:
            seat.record.budget, seat.record.precision = max(seat.record.budget or 0.0, share), judged.kind
            if not judged.passed:
                raise Caught(f"{call.kind}: {judged.reason}")

    def _cut(self, inputs: Inputs, rows: NDArray[np.intp]) -> Inputs:
        """What these rows ask, which differ from head to head."""
        query, shape = np.take_along_axis(inputs.query, rows[..., None], axis=2), self.workload.shape
        if self._visible is None:
            return inputs.with_(query=query, mask=Mask())
        seen = np.take_along_axis(np.broadcast_to(self._visible, shape), rows[..., None], axis=2)
        return inputs.with_(query=query, mask=Mask((Given(seen),)))

    # -- visits

    def visit(self, seats: Sequence[Seat], number: int, rounds: int, load_seconds: float) -> None:
        """Race the seats, the first of which is the reference; what ends one is noted there."""
        random = np.random.default_rng()
        racing = [one for one in seats if one.racing]
        for seat in racing:
            seat.attempt(self.open, seat, load_seconds)
            seat.attempt(self._warm, seat)
        racing = [one for one in racing if one.racing]
        seconds = max(1e-6, min((one.seconds for one in racing), default=1.0))
        # the same for all, so that none has a larger part of the empty call in its time
        at_once = min(_MOST_AT_ONCE, max(1, math.ceil(EMPTY_CALLS * self.empty_seconds / seconds)))
        odd, strict = random.integers(rounds, size=(2, len(racing)))
        for place in range(rounds):
            for at in random.permutation(len(racing)):
                seat = racing[at]
                if place == odd[at]:
                    seat.attempt(self.turn, seat, [*random.permutation(ODD)])
                seat.attempt(self._timed, seat, _ROUNDS * number + place, at_once, place == strict[at])
        for seat in racing:
            seat.attempt(seat.sandbox.end_visit)

    def _timed(self, seat: Seat, round_number: int, at_once: int, strict: bool) -> None:
        """One turn of normal inputs, of a number of calls that is drawn."""
        messages = min(_MOST_CALLS, max(1, round(_TURN_SECONDS / (seat.seconds * at_once))))
        calls = max(1, messages + secrets.randbelow(3) - 1) * at_once
        calls = max(1, min(calls, _MOST_BYTES // (self._slot_bytes + 2**16)))
        seat.turns.append((round_number, self.turn(seat, [NORMAL] * calls, at_once, strict)))

    def _warm(self, seat: Seat) -> None:
        """Compute until it is warm, and see how long a call takes."""
        until, found = perf_counter() + _WARM_SECONDS, [self.turn(seat, [NORMAL])]
        while perf_counter() < until or len(found) < 3:
            found.append(self.turn(seat, [NORMAL]))
        seat.seconds = min(found)

    def profile(self, seat: Seat) -> list[str]:
        """The operators that ran in one call, as the sandbox tells. Raises Failed."""
        seat.sandbox.clear()
        order = Order("profile", slots=[self._asked(seat, NORMAL).places])
        return seat.sandbox.ask(order, _ANSWER_SECONDS).names

    def measure_empty(self, seat: Seat) -> None:
        """What a call takes that computes nothing: message, waking, and the way back."""
        self.open(seat, _ANSWER_SECONDS)
        self.empty_seconds = statistics.median(self._message(seat, []) for _ in range(20))
        seat.sandbox.end_visit()
