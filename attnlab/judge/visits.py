"""Strict visits: inputs of its own for every call, the judge's clock around it, parts to check that are chosen later.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import msgspec
import numpy as np

from attnlab import system
from attnlab.judge.inside import Order
from attnlab.judge.problems import NORMAL, Array, Problem
from attnlab.judge.record import ROUNDS, Caught, Seat
from attnlab.judge.sandbox import part

#: the timed calls of a turn last about so long; messages of one, at most, calls of a message, and bytes of their arrays
_TURN_SECONDS, _MOST_MESSAGES, _MOST_AT_ONCE, _MOST_BYTES = 0.04, 8, 100, 2**27
#: where the reference's calls are shorter than so many empty ones, several are asked for at a time; longer than so many
#: seconds need no first one
EMPTY_CALLS, _LONG_SECONDS = 4.0, 0.05
#: turns of which the shortest tells what an empty call takes
_TURNS = 9
#: kinds of inputs in a turn that is not timed
_ODD = 4
#: seconds of the calls before the first turn, which are checked and not timed
_WARM_SECONDS = 0.1
#: a visit is disturbed in which others waited for a core for this part of the reference's turns
_WAITED = 0.05


def _others_waited() -> float:
    """Seconds in which any task of the system waited for a core, since it started; 0 where it does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
    return 0.0


class Visits:
    """Makes turns and visits on one problem, and checks what comes of them.

    load_seconds : to load a candidate, and for one answer.
    """

    def __init__(self, problem: Problem, load_seconds: float) -> None:
        self.problem, self.load_seconds, self.empty_seconds = problem, load_seconds, 0.0
        self._pool, self._told = ThreadPoolExecutor(system.cores()), dict[str, Any]()
        self._call_bytes = problem.input_bytes + problem.output_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a sandbox needs."""
        return 2**28 + 2 * max(_MOST_BYTES, 3 * self._call_bytes)

    def open(self, seat: Seat) -> None:
        """Start a process for a visit, and load the candidate. Raises Failed."""
        one, started = seat.candidate, perf_counter()
        how: dict[str, Any] = {"form": one.form, "entry": one.entry, "library": one.library}
        place = seat.sandbox.placed(one.source)
        order = msgspec.structs.replace(self.problem.loading, places=[place], **how)
        seat.sandbox.ask(order, self.load_seconds)
        seat.sandbox.stop()
        seat.record.setup_seconds = seat.record.setup_seconds or perf_counter() - started

    # -- on the clock

    def turn(
        self,
        seat: Seat,
        kinds: Sequence[str],
        at_once: int = 1,
        *,
        first: bool = False,
        strict: bool = False,
        op: Literal["call", "profile"] | None = "call",
    ) -> float:
        """Median seconds of a call. Raises Caught, and Failed.

        kinds : of the inputs of each message, which asks for calls `at_once`. first : the first message is not timed.
        strict : hold the calls of one message against the budget of their own inputs. op : what is asked, None for
        nothing.
        """
        box, problem = seat.sandbox, self.problem
        code, form = f"<i{problem.form.itemsize}", problem.form
        box.clear()
        drawn = list(self._pool.map(lambda kind: problem.draw(kind, at_once), kinds))
        bits = [[np.ascontiguousarray(x.astype(form, copy=False)).view(code) for x in one] for one in drawn]
        inputs = [box.lay(code, (at_once, *shape)) for shape in problem.shapes]
        # as many for any number of messages, which nobody can count then
        room = max(1, _MOST_BYTES // (at_once * problem.output_bytes))
        free = max(len(kinds), min(_MOST_MESSAGES + 1, room))
        outputs = [box.lay(code, (at_once, *problem.output_shape)) for _ in range(free)]
        orders = []
        for number in range(len(kinds)):
            arrays = [*inputs, outputs[number]]
            slots = [[part(place, at) for _, place in arrays] for at in range(at_once)]
            orders.append(Order(op or "call", slots=slots if op else []))
        seconds, chosen, taken = list[float](), list[Array](), list[Array]()
        box.go_on()
        for number, order in enumerate(orders):
            started = perf_counter()
            for (view, _), array in zip(inputs, bits[number], strict=True):
                view[...] = array
            box.send(order)
            reply = box.receive(self.load_seconds)
            chosen.append(problem.choose(at_once))  # now, and copied before the clock stops
            taken.append(problem.taken(outputs[number][0].view(form), chosen[-1]))
            seconds.append(perf_counter() - started)
            self._told = box.checked(reply).plain
            if box.unasked():
                raise Caught("it sent a message that nobody asked for")
        box.stop()
        held = secrets.randbelow(len(kinds)) if strict else -1
        for number, kind in enumerate(kinds if op else []):
            whole, rows = outputs[number][0].view(form), taken[number]
            if not all(np.isfinite(one.astype(np.float32)).all() for one in (whole, rows)):
                raise Caught(f"{kind}: numbers of an answer were not there when it said that it was done")
            for at in range(at_once):
                call = [one[at] for one in drawn[number]]
                got = rows[at].astype(np.float64)
                problem.check(seat.record, kind, call, chosen[number][at], got, number == held)
        return statistics.median(seconds[first:] or seconds) / at_once

    # -- visits

    def visit(self, seats: Sequence[Seat], number: int, rounds: int) -> bool:
        """Race the seats, the first of which is the reference; what ends one is noted there. Was it undisturbed?

        By the turns of the reference alone, while no candidate runs: none can choose which visits count.
        """
        random, waited, spent = np.random.default_rng(), 0.0, 1e-9
        racing = [one for one in seats if one.racing]
        for seat in racing:
            seat.attempt(self.open, seat)
            seat.attempt(self._warm, seat)
        racing = [one for one in racing if one.racing]
        # the same for all, so that none has a larger part of the empty call in its time; no candidate can move it
        calls = math.ceil(EMPTY_CALLS * self.empty_seconds / max(1e-6, seats[0].seconds))
        at_once = min(_MOST_AT_ONCE, max(1, calls))
        odd, strict = random.integers(rounds, size=(2, len(racing)))
        for place in range(rounds):
            for at in random.permutation(len(racing)):
                seat = racing[at]
                if place == odd[at]:
                    seat.attempt(self.turn, seat, [*random.permutation(self.problem.odd)[:_ODD]])
                before, started = _others_waited(), perf_counter()
                seat.attempt(self._timed, seat, ROUNDS * number + place, at_once, place == strict[at])
                if seat is seats[0]:
                    waited += _others_waited() - before
                    spent += perf_counter() - started
        for seat in racing:
            seat.attempt(seat.sandbox.end_visit)
        # one that ran while it should not may have slowed the others
        if any(one.record.status == "caught" for one in racing):
            for seat in racing:
                seat.forget(number)
            if any(one.racing for one in racing[1:]):
                return self.visit(seats, number, rounds)
        return waited <= _WAITED * spent

    def _timed(self, seat: Seat, round_number: int, at_once: int, strict: bool) -> None:
        """One turn of normal inputs, of a number of messages that is drawn."""
        first = seat.seconds < _LONG_SECONDS
        messages = round(_TURN_SECONDS / (seat.seconds * at_once)) + secrets.randbelow(3) - 1
        room = _MOST_BYTES // (at_once * self._call_bytes)
        kinds = [NORMAL] * (first + max(1, min(messages, room, _MOST_MESSAGES)))
        seat.turns.append((round_number, self.turn(seat, kinds, at_once, first=first, strict=strict)))

    def _warm(self, seat: Seat) -> None:
        """Compute until it is warm, and see how long a call takes."""
        until, found = perf_counter() + _WARM_SECONDS, [self.turn(seat, [NORMAL])]
        while perf_counter() < until or (len(found) < 2 and found[0] < _LONG_SECONDS):
            found.append(self.turn(seat, [NORMAL] * 3, first=True))
        seat.seconds = statistics.median(found)

    def profile(self, seat: Seat) -> list[str]:
        """The operators that ran in one call, as the sandbox tells. Raises Failed."""
        self.turn(seat, [NORMAL], op="profile")
        return [str(one) for one in self._told.get("ran") or ()]

    def measure_empty(self, seat: Seat) -> None:
        """What a call takes that computes nothing: inputs, message, waking, the way back, and copying of rows.

        The least of several turns: what else the machine does makes it longer, never shorter.
        """
        self.open(seat)
        turns = (self.turn(seat, [NORMAL] * _MOST_MESSAGES, first=True, op=None) for _ in range(_TURNS))
        self.empty_seconds = min(turns)
        seat.sandbox.end_visit()
