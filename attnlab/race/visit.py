"""One visit: a fresh process of each contender on one workload, from the drawing of its inputs to the end of all.

Each prepares, answers once and is checked, tells its kernels, and computes until it is warm. Then rounds: each
contender has a turn, in an order that is rotated, on inputs that were overwritten just before (where its library allows
that), while all other workers are stopped. The last answer of a turn is checked on rows that are chosen after it. One
that fails is not asked again on this workload; the others go on.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attnlab import system
from attnlab.backends.contender import Contender
from attnlab.correctness import weighing
from attnlab.correctness.expected import expect
from attnlab.errors import Declined
from attnlab.processes import Failed, Process
from attnlab.race import answers
from attnlab.race.admission import USABLE, Limits, predict, too_large, turns
from attnlab.race.instruments import INSTRUMENTS, NOTABLE, Readings, Watch, core_seconds, waited
from attnlab.race.seat import Ended, Seat
from attnlab.stats.ranking import is_second_entry
from attnlab.text import bytes_text, seconds_text
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import LOG_SUM, Workload

#: a round of visit v has the number v · this + its place
ROUNDS = 1000
#: a call that is longer needs no other before it to refill the caches; rows that are checked first in a later visit
_LONG_SECONDS, _LATER_ROWS = 0.01, 8
#: a smaller call of so many seconds is timed twice: a shorter one decides nothing; one that is too long, so often again
_SHORT, _AGAIN = (0.02, 0.1), 3
#: of a block's turns, one in so many is checked: its reference projects all tokens
_BLOCK_TURNS = 4
Start = Callable[[Contender], tuple[Process, Sequence[str]]]


class Suspended(Exception):
    """The machine slept during a visit: it does not count."""


@dataclass
class Visit:
    """A visit to `workload`, the one of that `number`.

    newcomers : names of the contenders that have not answered this workload before; some steps are for them alone.
    instruments : quantities that are measured instead of times. account : seconds by activity, added to. facts : what
    each contender's process reports, added to. trials : seconds of a call by contender and workload, added to.
    clock : a clock to compare a worker's with.
    """

    workload: Workload
    number: int
    limits: Limits
    newcomers: Collection[str]
    instruments: Collection[str]
    account: dict[str, float]
    facts: dict[str, dict[str, Any]]
    trials: dict[tuple[str, Workload], float | None]
    on_event: Callable[[str], None]
    clock: Callable[[], float]
    drawn: answers.Drawn = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = max(1, self.limits.rounds // 2) if self.newcomers else self.limits.rounds
        self._random = np.random.default_rng()
        self.seats: list[Seat] = []
        self._pages = ExitStack()  # closed when the processes have ended
        self._truth: dict[str | None, Any] = {}

    def run(self, contenders: Sequence[Contender], start: Start) -> list[Result]:
        """A result for each contender. Raises Suspended."""
        from threadpoolctl import threadpool_limits

        watch, started = Watch(), time.monotonic()
        self.seats = [Seat(one, workload=self.workload) for one in contenders]
        try:
            with threadpool_limits(1):  # no idle thread of ours may spin while a contender is on the clock
                with self._activity("drawing"):
                    self._draw()
                with self._activity("starting"):
                    self._start(start)
                timed = [] if self.instruments else [self._check, self._attest, self._warm, self._stay]
                for step in [self._admit, self._prepare, *timed]:
                    for seat in sorted(self._remaining(), key=lambda one: one.predicted.at_most):
                        seat.attempt(step)
                if not self.instruments:
                    self._plan_rounds()
                    self._take_turns()
                with self._activity("instruments"):
                    self._measure()
        finally:
            for process in (seat.process for seat in self.seats):
                if process is not None and process.alive:
                    process.kill()  # all at once: each takes milliseconds to end
            for seat in self.seats:
                if seat.process is not None:
                    seat.process.end()
            self._pages.close()
        if watch.slept():
            raise Suspended("the machine was suspended during the visit, which does not count")
        facts = {"others": f"{taken:.1f} cores"} if (taken := watch.others()) > NOTABLE else {}
        of_all = self.number, self.instruments, time.monotonic() - started, facts
        return [seat.result(*of_all, run_delay=self.limits.run_delay) for seat in self.seats]

    def _remaining(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.ended is None]

    @contextmanager
    def _activity(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.account[name] = self.account.get(name, 0.0) + time.monotonic() - started

    def _ask(self, seat: Seat, op: str, *, answer: Any = Any, seconds: float = 0.0, **arguments: Any) -> Any:
        """Let its process run until it has answered. Raises Failed."""
        assert seat.process is not None
        seat.process.go_on()
        try:
            return seat.process.ask(
                op, seconds=seconds or self.limits.deadline_seconds, answer=answer, **arguments
            )
        finally:
            if seat.process.alive:
                seat.process.stop()

    def _side_by_side(
        self, seats: Sequence[Seat], op: str, *, alone: bool = False, **arguments: Any
    ) -> Iterator[tuple[Seat, Callable[[], Any]]]:
        """Ask what no clock decides of as many at once as there are cores; each comes with the wait for its answer.

        One after the other if they are to be `alone`, on a device, and where memory could run short.
        """
        count, most = system.cores(), 4.0 * system.cores()
        held = {"scores": most, "outputs": most}
        if alone or self.workload.device != "cpu" or too_large(self.workload, held, system.free_bytes()):
            count = 1
        for at in range(0, len(seats), count):
            begun = []
            for seat in seats[at : at + count]:
                assert seat.process is not None
                seat.process.go_on()
                wait = seat.process.begin(op, seconds=self.limits.deadline_seconds, **arguments)
                begun.append((seat, seat.process, wait))
            for seat, process, wait in begun:
                yield seat, wait
                if process.alive:
                    process.stop()

    # -- before the clock --------------------------------------------------------------------------

    def _draw(self) -> None:
        """The inputs, and the rows of the first answers that are checked."""
        try:
            size, free = self.workload.input_bytes, system.free_bytes()
            if 2 * size > USABLE * free:
                told = f"its inputs take {bytes_text(size)} and lie there twice; {bytes_text(free)} are free"
                raise Ended(Outcome.OVER_BUDGET, f"{told}, of which {USABLE:.0%} may be used")
            drawn = inputs_of(self.workload.with_(seed=secrets.randbits(48)))
        except (Declined, Ended) as refused:  # such inputs cannot be had
            outcome = refused.outcome if isinstance(refused, Ended) else Outcome.DECLINED
            for seat in self.seats:
                seat.ended = outcome, str(refused), ""
            return
        self.drawn = answers.Drawn(self.workload, drawn, self._random)
        self._pages.callback(self.drawn.pages.close)
        most = None if self.newcomers else _LATER_ROWS
        self._rows = weighing.sampled_rows(self.workload, self._random, most)
        self.drawn.without_gradient(self._rows)

    def _start(self, start: Start) -> None:
        """Start the processes and let them load their backends side by side."""
        begun: list[tuple[Seat, Callable[[], Any]]] = []

        def begin(seat: Seat) -> None:
            seat.process, folders = start(seat.contender)
            how = {"contender": seat.contender, "folders": list(folders)}
            begun.append((seat, seat.process.begin("load", seconds=self.limits.start_seconds, **how)))

        def finish(load: Callable[[], Any], seat: Seat) -> None:
            seat.known = load()
            assert seat.process is not None
            seat.process.stop()

        for seat in self._remaining():
            seat.attempt(begin)
        if begun and not self.instruments:  # while they load
            log_sum = LOG_SUM in self.workload.results
            self._truth[None] = expect(self.drawn.first, self._rows, log_sum=log_sum)
        for seat, load in begun:
            seat.attempt(partial(finish, load))

    def _admit(self, seat: Seat) -> None:
        """Whether it does the workload, and how long a call will take."""
        workload = self.workload
        self.on_event(f"{workload.label}: preparing {seat.name}")
        with self._activity("preparing"):
            self._ask(seat, "declines", workload=workload)
            if seat.name not in self.facts:
                self.facts[seat.name] = self._ask(seat, "facts", device=workload.device)
            if seat.name in self.newcomers:
                seat.predicted = predict(workload, partial(self._tried, seat), self.limits.longest(math.inf))

    def _prepare(self, seat: Seat) -> None:
        """What comes before the first answer, where a call fits into memory."""
        with self._activity("preparing"):
            free = self._ask(seat, "free_bytes", device=self.workload.device)
            if reason := too_large(self.workload, seat.known.get("memory"), free):
                raise Ended(Outcome.OVER_BUDGET, reason)
            seat.pages = answers.answer_pages(self.workload)
            self._pages.callback(seat.pages.close)
            self._bind(seat)

    def _check(self, seat: Seat) -> None:
        """The first answer, held against the truth: that of the fastest first, as a wrong one limits nobody's time."""
        fastest = min(one.predicted.at_most for one in self._remaining())
        if reason := seat.predicted.too_long(self.limits.longest(fastest)):
            raise Ended(Outcome.OVER_BUDGET, reason)
        with self._activity("checking"):
            try:
                seat.setup |= self._ask(seat, "answer")
            finally:  # also where it fails, or the next one would be blamed
                unchanged = self.drawn.restore()
            if not unchanged:
                raise Ended(Outcome.WRONG, "it writes to its inputs")
            given = seat.answers, seat.computes_in
            found = weighing.judge(self.workload, self.drawn.first, self._rows, *given, self._truth)
            seat.accuracy = found
            if not found.passed:
                raise Ended(Outcome.WRONG, found.reason or "its answer is wrong")

    def _attest(self, seat: Seat) -> None:
        """Which kernels run, and whether those that it asked for. With most libraries a call, which warms it too."""
        if seat.name in self.newcomers:
            with self._activity("attesting"):
                seat.kernel = self._ask(seat, "attest", answer=str)
            if (asked := seat.known.get("kernel")) and asked not in seat.kernel:
                seat.notes.append(f"it asked for {asked}, but {seat.kernel} ran")

    def _tried(self, seat: Seat, smaller: Workload) -> float | None:
        """Seconds of a smaller call; None where it is declined."""
        if (seat.name, smaller) not in self.trials:
            seconds = None
            try:
                ask = partial(self._ask, seat, "trial", workload=smaller, answer=float)
                seconds, seat.tried = float(ask()), True
                if _SHORT[0] < seconds < _SHORT[1]:  # it may have been a busy moment
                    seconds = min(seconds, float(ask()))
            except Failed as fault:
                if fault.kind != "declined":
                    raise
            self.trials[seat.name, smaller] = seconds
        return self.trials[seat.name, smaller]

    def _bind(self, seat: Seat) -> None:
        assert seat.pages is not None
        pages = [(list(one.forms), one.path) for one in (self.drawn.pages, seat.pages)]
        how: dict[str, Any] = {"workload": self.workload, "plain": self.drawn.plain}
        told = self._ask(seat, "prepare", inputs=pages[0], answers=pages[1], **how)
        seat.refreshes, seat.cache = told["refreshes"], told["cache"]
        seat.setup.setdefault("bind_s", told["bind_s"])  # the first is cold
        seat.inputs = None if seat.refreshes else self.drawn.copy()

    def _warm(self, seat: Seat) -> None:
        """Compute until it is warm, and see how long a call takes: the least, where it is asked again."""
        with self._activity("warm-up"):
            if self.workload.backward and not seat.refreshes:  # on a gradient that is not mostly 0
                self.drawn.refresh()
                self._bind(seat)
            told = self._ask(seat, "warm", least_seconds=self.limits.warm_seconds, answer=dict[str, float])
        between = told.pop("between_s")
        # a busy machine makes calls long, but gives them no more processor time
        own = min(told.values()) if self.workload.device == "cpu" else told["seconds"]
        if not seat.own or own < seat.own:
            seat.seconds, seat.between, seat.own = told["seconds"], between, own

    def _stay(self, seat: Seat) -> None:
        """One whose calls take too long leaves; not one that was timed before, on a machine that is slower today."""
        is_new, fastest = seat.name in self.newcomers, min(one.own for one in self._remaining())
        limit = self.limits.longest(fastest)
        for _ in range(_AGAIN):  # a new process takes memory in its first calls
            if is_new and seat.own > limit:
                self._warm(seat)
        self.trials.setdefault((seat.name, self.workload), seat.own)
        if is_new and seat.own > limit:
            took = f"a call takes {seconds_text(seat.own)}; limit: {seconds_text(limit)}"
            raise Ended(Outcome.OVER_BUDGET, took)

    # -- rounds --------------------------------------------------------------------------------------

    def _plan_rounds(self) -> None:
        """How many calls a turn has, and in which rounds each contender has one."""
        racing, limits = self._remaining(), self.limits
        part = limits.workload_seconds / limits.visits if limits.visits < limits.most_visits else math.inf
        # the first report is not to wait
        seconds = min(limits.visit_seconds, part) / (4 if self.newcomers else 1)
        for seat in racing:
            each, opening = seat.seconds + seat.between, seat.seconds if seat.seconds < _LONG_SECONDS else 0.0
            seat.calls, seat.step = turns(limits, self.rounds, seconds / len(racing), each, opening)

    def _take_turns(self) -> None:
        order = list(self._remaining())
        self._random.shuffle(order)
        least = min((seat.step for seat in order), default=1)
        for number in range(self.rounds):
            self.on_event(f"{self.workload.label}: visit {self.number + 1}, round {number + 1}")
            begin = number // least % max(1, len(order))
            for seat in order[begin:] + order[:begin]:
                if seat.ended is None and number % seat.step == 0:
                    seat.attempt(partial(self._turn, number))

    def _turn(self, number: int, seat: Seat) -> None:
        """One turn: fresh inputs, the calls on the clock, and a look at the last answer."""
        process, seconds = seat.process, self.limits.deadline_seconds
        assert process is not None and seat.pages is not None
        with self._activity("between turns"):
            if seat.refreshes:
                self.drawn.refresh()
            process.go_on()
            if seat.refreshes:
                process.ask("refresh", seconds=seconds)
        with self._activity("timed"):
            stolen, moment, began = core_seconds("steal"), time.time(), self.clock()
            opening = seat.seconds < _LONG_SECONDS
            # one more or not: else a backend that skips every second call could skip only those that are never checked
            calls = seat.calls + int(self._random.integers(2)) * (opening or seat.calls > 1)
            turn = process.ask("turn", seconds=seconds, calls=calls, opening=opening, answer=dict[str, float])
            bracket = self.clock() - began
            if not turn["seconds"] > 0:
                raise Ended(Outcome.WRONG, f"its clock told {turn['seconds']:g} s for a call")
            stolen = core_seconds("steal") - stolen
        with self._activity("between turns"):
            seat.pages.fill_nan()
            process.ask("reveal", seconds=seconds)
            process.stop()
            if self.workload.d_model is None or self._random.integers(_BLOCK_TURNS) == 0:
                asked = self.workload, seat.inputs or self.drawn.inputs
                if reason := answers.astray(*asked, seat.answers, seat.computes_in, self._random):
                    raise Ended(Outcome.WRONG, reason)
        noted = {"round": float(ROUNDS * self.number + number), "visit": float(self.number), "moment": moment}
        seat.turns.append({**turn, **noted, "clock_s": bracket, "waited": waited(turn, bracket, stolen)})

    # -- after the rounds, or instead of them -----------------------------------------------------------

    def _measure(self) -> None:
        """By the other instruments: where one fails that is noted, and the time stands."""
        for name, instrument in INSTRUMENTS.items():
            wanted = name in self.instruments or (instrument.every_visit and not self.instruments)
            if not (wanted and instrument.applies(self.workload)):
                continue
            # the instrument before may have ended a process
            seats = [one for one in self._remaining() if one.process and one.process.alive]
            seats = [one for one in seats if not is_second_entry(one.name)]
            how: dict[str, Any] = {"quantity": instrument.quantity, "answer": Readings}
            self.on_event(f"{self.workload.label}: {instrument.quantity}")
            for seat, wait in self._side_by_side(seats, "measure", alone=instrument.every_visit, **how):
                try:
                    found = wait()
                    seat.measurements.append(instrument.measurement(found, self.number))
                except Failed as fault:
                    seat.notes.append(f"its {instrument.quantity} could not be measured: {fault}")
                    if fault.kind == "timed_out" and seat.process is not None:
                        seat.process.end()  # it would go on beside the others
