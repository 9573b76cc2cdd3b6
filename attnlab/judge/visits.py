"""What a candidate is asked: an exam of daily questions, then strict visits, with the judge's clock around every call.

A turn is some calls, one after the other. While every process of the sandbox is stopped the judge draws the inputs of
all of them from the system's randomness, in its own memory. Then the sandbox runs, and for each call the clock starts,
the inputs are copied into the shared memory, the candidate is asked, and the clock stops when the parts that the judge
chose after the answer have been copied. So the inputs of a later call are not there, and whatever a candidate does in
a turn is on the clock of one of its calls. It does not know how many there are.

The first call of a turn is checked and not timed: after a stop threads wake up on any core, which made the time of one
call in three half as long again.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import call
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from attnlab import system
from attnlab.correctness import weighing
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.questions import FORWARD, Question
from attnlab.errors import Declined, Misbehaved
from attnlab.judge.inside import Op, Order, Reply
from attnlab.judge.memory import Array, DeviceMemory, HostMemory
from attnlab.judge.problems import NORMAL, Problem, Share
from attnlab.judge.score import CAUGHT, ROUNDS, Seat
from attnlab.processes import Failed
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs, pack
from attnlab.workload.number_formats import carrier
from attnlab.workload.workload import OUTPUT, Workload

#: the timed calls of a turn last about so long; at most so many messages of one, calls of a message, bytes of their
#: arrays, and bytes of those on a device
_TURN_SECONDS, _MOST_MESSAGES, _MOST_AT_ONCE, _MOST_BYTES, _ON_DEVICE = 0.03, 8, 100, 2**27, 2**28
#: where a call of the reference is shorter than so many messages without it, several are asked for at a time, as from a
#: message of so many calls is seen; calls longer than so many seconds need none of this
_EMPTY_CALLS, _SOME, _LONG_SECONDS = 4.0, 8, 0.05
#: of a message so many calls are checked, or as many as have so many bytes of inputs
_CHECKED, _CHECKED_BYTES = 8, 2**25
#: turns of which the shortest tells what an empty call takes
_TURNS = 9
#: kinds of inputs in a turn that is not timed
_ODD = 4
#: what is computed before the first turn, checked and not timed: for so many seconds, and so many calls unless these
#: last so long. In its first five calls a new process takes memory, which made a call of 24 ms one of 40
_WARM_SECONDS, _WARM_CALLS, _WARM_ENOUGH = 0.06, 8, 0.25
#: a visit is disturbed in which threads waited for a core for this part of the reference's turns, summed over threads
_WAITED = 0.35
#: query rows of another shape that are looked at in the exam
_ROWS = 12


class Visits:
    """Makes turns and visits on one problem, and checks what comes of them.

    load_seconds : to load a candidate, and for one answer.
    """

    def __init__(self, problem: Problem, load_seconds: float) -> None:
        self.problem, self.load_seconds, self.empty_seconds = problem, load_seconds, 0.0
        #: what the sandbox said last
        self._pool, self.told = ThreadPoolExecutor(system.cores()), Reply("done")
        self._call_bytes = problem.input_bytes + problem.output_bytes
        on_device = problem.loading.device == "cuda"
        #: calls of a message
        self.at_once = 1
        self._most_bytes = _ON_DEVICE if on_device else _MOST_BYTES
        #: bytes of shared memory that a sandbox needs
        self.shared_bytes = 2**28 + 2 * max(self._most_bytes, 3 * self._call_bytes)
        #: of a device, for the calls that are timed; all sandboxes share it, since one alone computes at a time
        self.device = DeviceMemory(self.shared_bytes) if on_device else None
        self._seed, self._odd = secrets.randbits(31), [one for one in problem.kinds if one != NORMAL]

    def open(self, seat: Seat) -> None:
        """Start a process for a visit, and load the candidate. Raises Failed."""
        seat.sandbox.ready()
        started, unnamed = perf_counter(), replace(seat.candidate, name="")
        seat.sandbox.ask(msgspec.structs.replace(self.problem.loading, candidate=unnamed), self.load_seconds)
        seat.sandbox.stop()
        seat.record.setup_seconds = seat.record.setup_seconds or perf_counter() - started

    # -- on the clock

    def turn(
        self, seat: Seat, kinds: Sequence[str], at_once: int = 1, strict: bool = False, op: Op = "call"
    ) -> float:
        """Median seconds of a call. Raises Failed.

        kinds : of the inputs of each message, which asks for calls `at_once`; of several messages the first is not
        timed. strict : hold the calls of one message against the budget of their own inputs. op : what is asked.
        """
        box, problem, form = seat.sandbox, self.problem, self.problem.form
        code, memory = problem.code, self.device or box.memory
        memory.used = 0  # what was laid there before is forgotten
        staged, given = zip(*self._pool.map(partial(self._drawn, memory, at_once), kinds), strict=True)
        inputs = [memory.lay(code, (at_once, *shape)) for shape in problem.shapes]
        # as many for any number of messages, which nobody can count then
        room = max(1, self._most_bytes // (at_once * problem.output_bytes))
        free = max(len(kinds), min(_MOST_MESSAGES + 1, room))
        outputs = [memory.lay(code, (at_once, *problem.output_shape)) for _ in range(free)]
        places = [place for _, place in inputs]
        seconds, chosen, taken = list[float](), list[tuple[Array, ...]](), list[Array]()
        orders = [Order(op, places=[*places, place]) for _, place in outputs]
        for other in problem.boxes:
            other.stop()
        box.go_on()
        memory.finish()
        for order, arrays, (output, _) in zip(orders, staged, outputs, strict=False):
            started = perf_counter()
            # queries last: without them nothing can be computed while the rest is copied
            for (view, _), array in reversed([*zip(inputs, arrays, strict=True)]):
                view[...] = array
            memory.finish()
            box.send(order)
            reply = box.receive(self.load_seconds)
            chosen.append(problem.choose(at_once))  # now, and copied before the clock stops
            taken.append(memory.taken(output, chosen[-1]).view(form))
            seconds.append(perf_counter() - started)
            self.told = box.checked(reply)
            box.look()  # off the clock: in a turn of short calls nobody else does
            if box.message():
                raise Failed(CAUGHT, "it sent a message that nobody asked for")
        box.stop()
        if op != "rest":
            answers = [*zip(kinds, given, chosen, taken, outputs, strict=False)]
            self._check(seat, memory, answers, secrets.randbelow(len(kinds)) if strict else -1)
        return statistics.median(seconds[1:] or seconds) / at_once

    def _check(self, seat: Seat, memory: HostMemory, answers: Sequence[Any], held: int) -> None:
        """Hold some calls of each message against the truth; of the message `held` by the budget of its own inputs.

        answers : of each message the kind, what gives the inputs of a call, what was chosen, what came, and the output.
        """
        problem, record, random = self.problem, seat.record, np.random.default_rng()
        checks = list[Callable[[], Share]]()
        for number, (kind, given, chosen, rows, (output, _)) in enumerate(answers):
            if not (memory.finite(output, problem.form) and np.isfinite(rows.astype(np.float32)).all()):
                raise Failed(CAUGHT, f"{kind}: an answer was not whole when it said that it was done")
            for at in random.permutation(len(rows))[: max(_CHECKED, _CHECKED_BYTES // problem.input_bytes)]:
                asked = given(at), chosen[-1][at], rows[at].astype(np.float64), number == held
                checks.append(partial(problem.check, record.digest, kind, *asked))
        # what the reference's module computes comes one after the other
        run: Any = map if problem.boxes else self._pool.map
        for share, precision in filter(None, run(call, checks)):  # raises what is found first
            record.budget, record.precision = max(record.budget or 0.0, share), precision

    def _drawn(self, memory: HostMemory, count: int, kind: str) -> tuple[list[Any], Callable[[int], Any]]:
        """The inputs of so many calls, stacked near the memory; and what gives those of one call, for its check."""
        # the host would take as long as for a hundred calls
        if isinstance(memory, DeviceMemory) and kind == NORMAL:
            normal = [memory.normal((count, *shape), self.problem.dtype) for shape in self.problem.shapes]
            return normal, lambda at: [memory.read(one[at], self.problem.dtype) for one in normal]
        calls = [self.problem.draw(kind) for _ in range(count)]
        stacked = map(np.stack, zip(*(bits for _, bits in calls), strict=True))
        return [memory.staged(one) for one in stacked], lambda at: calls[at][0]

    # -- visits

    def visit(self, seats: Sequence[Seat], number: int, rounds: int, again: bool = True) -> bool:
        """Race the seats, the first of which is the reference; what ends one is noted there. Was it undisturbed?

        By the turns of the reference alone, while no candidate runs: none can choose which visits count. Made `again`
        where it was disturbed, and where a candidate ran while it should not, which may have slowed the others.
        """
        random, waited, spent = np.random.default_rng(), 0.0, 0.0
        racing = [one for one in seats if one.racing]
        order = [racing[at] for at in random.permutation(len(racing))]
        # a stopped process stops no kernel that it has sent to a device: there one ends before the next one begins
        for group in [[one] for one in order] if self.device else [order]:
            for seat in group:
                seat.attempt(self.open, seat)
                seat.attempt(self._warm, seat)
            odd, strict = random.integers(rounds, size=(2, len(group)))
            for place in range(rounds):
                for at in random.permutation(len(group)):
                    seat = group[at]
                    # as many calls for the reference: they take memory, which speeds up later ones
                    if place == odd[at]:
                        few = random.permutation(self._odd)[:_ODD]
                        seat.attempt(self.turn, seat, [NORMAL] * _ODD if seat is seats[0] else [*few])
                    before, started = seat.sandbox.waited, perf_counter()
                    seat.attempt(self._timed, seat, ROUNDS * number + place, place == strict[at])
                    if seat is seats[0]:
                        waited += seat.sandbox.waited - before
                        spent += perf_counter() - started
            for seat in group:
                seat.attempt(seat.sandbox.end_visit)
        calm = waited <= _WAITED * spent
        caught = any(one.record.status == "caught" for one in racing)
        if not caught and (calm or not again):
            return calm
        over = not any(one.racing for one in racing[1:])
        return over or self.visit(seats, number, rounds, caught and again)

    def _timed(self, seat: Seat, round_number: int, strict: bool) -> None:
        """One turn of normal inputs, of a number of messages that is drawn."""
        first, at_once = seat.seconds < _LONG_SECONDS, self.at_once
        messages = round(_TURN_SECONDS / (seat.seconds * at_once)) + secrets.randbelow(3) - 1
        room = self._most_bytes // (at_once * self._call_bytes)
        kinds = [NORMAL] * (first + max(1, min(messages, room, _MOST_MESSAGES)))
        seat.turns[round_number] = self.turn(seat, kinds, at_once, strict)

    def _warm(self, seat: Seat) -> None:
        """Compute until it is warm, and see how long a call takes."""
        self.turn(seat, [NORMAL])  # the first call may compile
        started, seat.seconds, calls, spent = perf_counter(), math.inf, 1, 0.0
        while spent < _WARM_SECONDS or (calls < _WARM_CALLS and spent < _WARM_ENOUGH):
            seat.seconds = min(seat.seconds, self.turn(seat, [NORMAL] * 3))
            calls, spent = calls + 3, perf_counter() - started

    def _batch(self, seat: Seat) -> int:
        """Calls of a message, so that most of its time is theirs: for all alike, and moved by the reference alone."""
        most = min(_MOST_AT_ONCE, max(1, self._most_bytes // self._call_bytes))
        few = min(most, _SOME)
        alone = self.turn(seat, [NORMAL] * 4)
        if few == 1 or alone > _LONG_SECONDS:
            return 1
        call = (few * self.turn(seat, [NORMAL] * 4, few) - alone) / (few - 1)
        beside = max(self.empty_seconds, alone - call)
        return max(1, min(most, math.ceil(_EMPTY_CALLS * beside / max(1e-6, call))))

    # -- the exam

    def examine(self, seat: Seat, is_reference: bool = False) -> int:
        """Ask for its own shape, for shapes beside it, and the questions of `attnlab check`: how many it answered.

        What a candidate does not do it may decline, but for its own shape. The reference may also fail the questions of
        `check`: a released kernel that is wrong elsewhere is a reference here. Raises Failed.
        """
        kinds = [*np.random.default_rng().permutation([*self._odd, *[NORMAL] * _ODD])]
        for start in range(0, len(kinds), _ODD):
            self.turn(seat, kinds[start : start + _ODD])
        self.turn(seat, [NORMAL], strict=True)
        if is_reference:
            empty = partial(self.turn, seat, [NORMAL] * _MOST_MESSAGES, op="rest")
            self.empty_seconds = min(empty() for _ in range(_TURNS))
            self.at_once = self._batch(seat)
        workload, asked = self.problem.loading.workload, 0
        if workload is None:
            return asked
        for other in beside(workload):
            with suppress(Declined):
                inputs = inputs_of(other.with_(seed=secrets.randbits(31)))
                rows = weighing.sampled_rows(other, np.random.default_rng(), _ROWS)
                try:
                    answer = {OUTPUT: self._answer(seat, other, inputs)}
                except Misbehaved as fault:
                    raise Failed(CAUGHT, f"{other.label}: {fault}") from None
                judged = weighing.judge(other, inputs, rows, answer, None)
                if not judged.passed:
                    raise Failed(CAUGHT, f"{other.label}: {judged.reason}")
                asked += 1

        def ask(question: Question) -> Answers:
            # PyTorch's own kernels answer NaN to a negative scale, which nobody asks for
            if question.inputs.dtype != workload.dtype or question.inputs.scale <= 0:
                raise Declined("it is not judged here")
            return {OUTPUT: self._answer(seat, question.workload, question.inputs)}

        found = examine(ask, workload.dtype, seed=self._seed, kinds=(FORWARD,), daily=True)
        if found.fault and not is_reference:
            raise Failed(CAUGHT, found.fault)
        return asked + found.asked

    def _answer(self, seat: Seat, workload: Workload, inputs: Inputs) -> Array:
        """Raises Declined, Misbehaved for what ends with the question, and Failed for what ends the candidate."""
        workload = workload.with_(device=self.problem.loading.device)
        plain, arrays = pack(inputs)
        order, shape = Order("ask", workload=workload, plain=plain), workload.shape_of(OUTPUT)
        try:
            output = seat.sandbox.answer(order, arrays, self.problem.code, shape, self.load_seconds)
        except Failed as fault:
            raise (fault.told() if seat.sandbox.alive else fault) from None
        return output.view(self.problem.form).astype(carrier(workload.dtype))


def beside(workload: Workload) -> Iterator[Workload]:
    """The asked shape but for one thing: one key or query less, another length, one batch element more."""
    n, m, batch = workload.queries, workload.keys, workload.batch
    for queries, keys, count in ((n - 1, m - 1, batch), (n // 2 + 3, m // 2 + 3, batch), (n, m, batch + 1)):
        with suppress(ValueError):  # its mask has no such shape
            yield workload.with_(queries=max(1, queries if n == m else n), keys=max(1, keys), batch=count)
