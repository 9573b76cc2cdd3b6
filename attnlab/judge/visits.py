"""The tests of a candidate: an exam of questions, then visits. The judge's clock runs around every message.

A turn is a few messages, one after the other, each for one or more calls. Before a turn every process of the sandbox is
stopped, and the judge draws the inputs of all its calls from the system's randomness, in its own memory. Then the
sandbox runs. For each message the clock starts, the inputs are copied into the shared memory, and the candidate
computes. After the reply the judge chooses which parts it checks, and the clock stops when these are copied. So a
candidate cannot read the inputs of a later message, and its work falls into the time of one of the messages. It does
not know how many messages there are.

The first message of a turn is checked but not timed: after a stop, threads wake up on any core, and one call in three
took 1.5 times as long.
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

#: seconds of timed calls in a turn; most timed messages in a turn; most calls in a message; most bytes of a turn's
#: arrays on the CPU; the same on a device
_TURN_SECONDS, _MOST_MESSAGES, _MOST_AT_ONCE, _MOST_BYTES, _ON_DEVICE = 0.03, 8, 100, 2**27, 2**28
#: the calls of a message should take at least this many times as long as its overhead; calls in the message that shows
#: their time; a call longer than this many seconds is alone in its message, and its turns have no extra first message
_EMPTY_CALLS, _SOME, _LONG_SECONDS = 4.0, 8, 0.05
#: calls of a message that are checked: this many; or as many as have this many bytes of inputs, if that is more
_CHECKED, _CHECKED_BYTES = 8, 2**25
#: the number of turns of empty calls; the shortest gives the time of an empty call
_TURNS = 9
#: messages in a turn that tests other kinds of inputs and is not timed
_ODD = 4
#: the warm-up before the first turn, checked and not timed: at least this many seconds; at least this many calls,
#: unless they take this many seconds. A new process takes memory in its first five calls: a call of 24 ms took 40 ms
_WARM_SECONDS, _WARM_CALLS, _WARM_ENOUGH = 0.06, 8, 0.25
#: a visit is disturbed if the reference's threads waited for a core, in sum, longer than this part of its turns
_WAITED = 0.35
#: the number of query rows that the exam checks for each other shape
_ROWS = 12


class Visits:
    """Runs turns and visits on one problem, and checks the answers.

    load_seconds : the time for loading a candidate, and for one answer.
    """

    def __init__(self, problem: Problem, load_seconds: float) -> None:
        self.problem, self.load_seconds, self.empty_seconds = problem, load_seconds, 0.0
        #: the last reply of a sandbox
        self._pool, self.told = ThreadPoolExecutor(system.cores()), Reply("done")
        self._call_bytes = problem.input_bytes + problem.output_bytes
        on_device = problem.loading.device == "cuda"
        #: the number of calls in a timed message
        self.at_once = 1
        self._most_bytes = _ON_DEVICE if on_device else _MOST_BYTES
        #: bytes of shared memory that a sandbox needs
        self.shared_bytes = 2**28 + 2 * max(self._most_bytes, 3 * self._call_bytes)
        #: shared memory on the device, for turns; all sandboxes share it, because only one computes at a time
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
        """Run a turn and return the median seconds of a call. Raises Failed.

        kinds : the kind of inputs of each message; the first of several messages is not timed. at_once : calls in each
        message. strict : check one random message by the budget of its own inputs. op : as in `Order`.
        """
        box, problem, form = seat.sandbox, self.problem, self.problem.form
        code, memory = problem.code, self.device or box.memory
        memory.used = 0  # arrays of earlier turns are overwritten
        staged, given = zip(*self._pool.map(partial(self._drawn, memory, at_once), kinds), strict=True)
        inputs = [memory.lay(code, (at_once, *shape)) for shape in problem.shapes]
        # the same number for any number of messages, so that a candidate cannot count them
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
            # queries are copied last: without them a candidate cannot begin during the copy
            for (view, _), array in reversed([*zip(inputs, arrays, strict=True)]):
                view[...] = array
            memory.finish()
            box.send(order)
            reply = box.receive(self.load_seconds)
            chosen.append(problem.choose(at_once))  # chosen after the answer, copied before the clock stops
            taken.append(memory.taken(output, chosen[-1]).view(form))
            seconds.append(perf_counter() - started)
            self.told = box.checked(reply)
            box.look()  # off the clock; `receive` looks only during long calls
            if box.message():
                raise Failed(CAUGHT, "it sent a message that nobody asked for")
        box.stop()
        if op != "rest":
            answers = [*zip(kinds, given, chosen, taken, outputs, strict=False)]
            self._check(seat, memory, answers, secrets.randbelow(len(kinds)) if strict else -1)
        return statistics.median(seconds[1:] or seconds) / at_once

    def _check(self, seat: Seat, memory: HostMemory, answers: Sequence[Any], held: int) -> None:
        """Compare some calls of each message with the truth; those of message `held` by the budget of their own inputs.

        answers : for each message its kind, a function that gives a call's inputs, the chosen index, the copied parts,
        and the output.
        """
        problem, record, random = self.problem, seat.record, np.random.default_rng()
        checks = list[Callable[[], Share]]()
        for number, (kind, given, chosen, rows, (output, _)) in enumerate(answers):
            if not (memory.finite(output, problem.form) and np.isfinite(rows.astype(np.float32)).all()):
                raise Failed(CAUGHT, f"{kind}: an answer was not whole when it said that it was done")
            for at in random.permutation(len(rows))[: max(_CHECKED, _CHECKED_BYTES // problem.input_bytes)]:
                asked = given(at), chosen[-1][at], rows[at].astype(np.float64), number == held
                checks.append(partial(problem.check, record.digest, kind, *asked))
        # one sandbox has the reference's module, so its checks run one after the other
        run: Any = map if problem.boxes else self._pool.map
        for share, precision in filter(None, run(call, checks)):  # raises the first fault
            record.budget, record.precision = max(record.budget or 0.0, share), precision

    def _drawn(self, memory: HostMemory, count: int, kind: str) -> tuple[list[Any], Callable[[int], Any]]:
        """The inputs of `count` calls, stacked on the memory's device; and a function that gives those of one call."""
        # drawing them on the host would take as long as a hundred calls
        if isinstance(memory, DeviceMemory) and kind == NORMAL:
            normal = [memory.normal((count, *shape), self.problem.dtype) for shape in self.problem.shapes]
            return normal, lambda at: [memory.read(one[at], self.problem.dtype) for one in normal]
        calls = [self.problem.draw(kind) for _ in range(count)]
        stacked = map(np.stack, zip(*(bits for _, bits in calls), strict=True))
        return [memory.staged(one) for one in stacked], lambda at: calls[at][0]

    # -- visits

    def visit(self, seats: Sequence[Seat], number: int, rounds: int, again: bool = True) -> bool:
        """Race the seats, the first of which is the reference. Returns whether the visit was undisturbed.

        Only the turns of the reference decide that, and no candidate runs then: none can choose which visits count. If
        `again`, a disturbed visit is repeated once. It is also repeated whenever a candidate was caught, because that
        one may have slowed the others. There is no repetition if no candidate is left. A failure is noted in the record
        of its seat.
        """
        random, waited, spent = np.random.default_rng(), 0.0, 0.0
        racing = [one for one in seats if one.racing]
        order = [racing[at] for at in random.permutation(len(racing))]
        # stopping a process does not stop its kernels on a device: there one process ends before the next begins
        for group in [[one] for one in order] if self.device else [order]:
            for seat in group:
                seat.attempt(self.open, seat)
                seat.attempt(self._warm, seat)
            odd, strict = random.integers(rounds, size=(2, len(group)))
            for place in range(rounds):
                for at in random.permutation(len(group)):
                    seat = group[at]
                    # as many calls for the reference: they take memory, which makes later calls faster
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
        """One timed turn on normal inputs. The number of messages is partly random."""
        first, at_once = seat.seconds < _LONG_SECONDS, self.at_once
        messages = round(_TURN_SECONDS / (seat.seconds * at_once)) + secrets.randbelow(3) - 1
        room = self._most_bytes // (at_once * self._call_bytes)
        kinds = [NORMAL] * (first + max(1, min(messages, room, _MOST_MESSAGES)))
        seat.turns[round_number] = self.turn(seat, kinds, at_once, strict)

    def _warm(self, seat: Seat) -> None:
        """Warm the candidate up, and estimate the seconds of a call."""
        self.turn(seat, [NORMAL])  # the first call may compile
        started, seat.seconds, calls, spent = perf_counter(), math.inf, 1, 0.0
        while spent < _WARM_SECONDS or (calls < _WARM_CALLS and spent < _WARM_ENOUGH):
            seat.seconds = min(seat.seconds, self.turn(seat, [NORMAL] * 3))
            calls, spent = calls + 3, perf_counter() - started

    def _batch(self, seat: Seat) -> int:
        """How many calls a message has, so that they take most of its time. The reference alone decides it, for all."""
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
        """Ask for the problem's shape, for similar shapes, and the questions of `attnlab check`. Raises Failed.

        Returns the number of answers to similar shapes and questions; a candidate may decline these. The reference may
        also fail the questions of `check`: a released kernel that is wrong elsewhere can be a reference.
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
            # PyTorch's own kernels return NaN for a negative scale, which no workload needs
            if question.inputs.dtype != workload.dtype or question.inputs.scale <= 0:
                raise Declined("it is not judged here")
            return {OUTPUT: self._answer(seat, question.workload, question.inputs)}

        found = examine(ask, workload.dtype, seed=self._seed, kinds=(FORWARD,), daily=True)
        if found.fault and not is_reference:
            raise Failed(CAUGHT, found.fault)
        return asked + found.asked

    def _answer(self, seat: Seat, workload: Workload, inputs: Inputs) -> Array:
        """The answer. Raises Declined or Misbehaved if only this question fails, else Failed."""
        workload = workload.with_(device=self.problem.loading.device)
        plain, arrays = pack(inputs)
        order, shape = Order("ask", workload=workload, plain=plain), workload.shape_of(OUTPUT)
        try:
            output = seat.sandbox.answer(order, arrays, self.problem.code, shape, self.load_seconds)
        except Failed as fault:
            raise (fault.told() if seat.sandbox.alive else fault) from None
        return output.view(self.problem.form).astype(carrier(workload.dtype))


def beside(workload: Workload) -> Iterator[Workload]:
    """Similar workloads: with one key less, with another length, with one batch element more.

    If there are as many queries as keys, they change with the keys.
    """
    n, m, batch = workload.queries, workload.keys, workload.batch
    for queries, keys, count in ((n - 1, m - 1, batch), (n // 2 + 3, m // 2 + 3, batch), (n, m, batch + 1)):
        with suppress(ValueError):  # the mask cannot have this shape
            yield workload.with_(queries=max(1, queries if n == m else n), keys=max(1, keys), batch=count)
