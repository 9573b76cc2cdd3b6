"""The race over one workload: interleaved rounds in one set of processes after the other, until it is decided.

Three levels of chance are drawn again and again: the process (each set is one of every contender), the placement of
its memory (released and taken anew every few rounds), and the round. Verdicts are looked at after the planned sets
and after the most that are allowed, not after each: an interval that is looked at all the time shows a difference
sooner or later. A contender that is out of all proportion slower or faster than the baseline leaves as soon as an
interval exists, when it has cost more than its share of the time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from attnlab import system
from attnlab.judge import replication, verdicts
from attnlab.judge.ranking import implementation_of
from attnlab.judge.verdicts import Verdict
from attnlab.race import disturbance
from attnlab.race.instruments import LATENCY
from attnlab.race.limits import LEAST_ROUNDS, Limits
from attnlab.race.participant import Participant

T = TypeVar("T")
#: a ratio beyond this is clear at any look; a few looks more make no false claim of such a difference
_CLEAR = 1.5
#: sets after which a clear difference is looked for: two pairs leave Student's quantile at 22 and more
_FIRST_SETS = 3
#: a contender whose calls take so many times as long as the fastest's has the least rounds in every set
_FAR = 8.0
#: rounds that a placement of the arrays is raced for
_PLACED_FOR = 4
#: seconds that a page fault takes, about: the kernel clears the page
_FAULT_SECONDS = 1e-6
#: a disturbed turn is taken again so often, ...
_RETAKES = 2
#: ... while this part of the workload's time has not gone into it: a neighbour that stays is not waited for
_RETAKEN_SHARE = 0.5


@dataclass(kw_only=True)
class Race:
    """One workload's rounds over `participants`; their turns are the outcome.

    `account` takes the seconds spent timed, settling, waking and stopping, and placing.
    """

    participants: Sequence[Participant]
    baseline: str
    limits: Limits
    account: dict[str, float]
    #: tells what others have taken of the machine since the race began
    others: Callable[[], disturbance.Others]
    on_event: Callable[[str], None] = lambda text: None
    #: seconds of rounds so far, those of contenders that have left again not counted
    spent: float = 0.0
    #: seconds that getting the present set ready took
    ready_seconds: float = 0.0
    _rounds: int = 0
    _retaken: float = 0.0
    #: seconds in this set of turns that never ended
    _lost: float = 0.0
    _calibration: float = 0.0

    @property
    def racing(self) -> list[Participant]:
        """Those who take part in the next set."""
        return [one for one in self.participants if one.racing and one.ended is None]

    def run(self, number: int) -> None:
        """The rounds of set `number`, whose processes the participants hold, prepared. Returns at once without any."""
        racing = [one for one in self.racing if one.present]
        if not racing:
            return
        workload, started, placement = racing[0].workload, time.monotonic(), 0
        self._lost = 0.0
        before = {one.name: one.spent for one in racing}
        order = latin_square(racing, seed=workload.seed + number)
        aim, share, apart = self._rounds_wanted(number), self._share(number), 0.0
        for count in range(math.ceil(self.limits.max_rounds / self.limits.processes)):
            if count == LEAST_ROUNDS and (far := _far_behind(racing)):
                racing = [one for one in racing if one not in far]
                order = latin_square(racing, seed=workload.seed + number)
                for one in far:
                    one.apart += one.spent - before[one.name]
                apart = sum(one.spent - before[one.name] for one in far)
            elapsed = time.monotonic() - started - apart - self._lost
            over = elapsed + elapsed / count > share if count else False  # a round more would not fit
            if over and (count >= LEAST_ROUNDS or self.spent + elapsed > self.limits.utmost_seconds):
                break
            if count >= aim or not any(one.ended is None for one in racing):
                break
            self.on_event(f"{workload.label}: round {self._rounds + 1}, process {number + 1}")
            if count and count % _PLACED_FOR == 0:
                placement += 1
                self._place(racing)
            turn = partial(self._turn, number=number, placement=placement, fresh=count % _PLACED_FOR == 0)
            self._round(next(order), turn)
        self.spent += time.monotonic() - started - apart - self._lost
        self._hold_against_others(number)
        self._let_leave(number)

    def over(self, sets: int) -> bool:
        """Whether nothing is left to find out after so many sets, or no time is left for another."""
        limits = self.limits
        if sets >= max(limits.processes, limits.most_processes) or self._nobody_to_pair():
            return True
        if sets < limits.processes:
            return self.spent > limits.utmost_seconds
        if sets == limits.processes:  # the first look: what is decided has its verdict
            still_open = self._open()
            for one in self._challengers():
                one.racing = one in still_open
        return self.spent > limits.utmost_seconds or not self._challengers()

    def cut_short(self, sets: int) -> str | None:
        """That the time was over before all planned processes had raced, with figures; None where it was not."""
        if sets >= self.limits.processes or self.spent <= self.limits.utmost_seconds:
            return None
        all_of_it = math.ceil(self.spent / sets * self.limits.processes)
        return (
            f"{sets} of {self.limits.processes} processes: their rounds took {self.spent:.0f} s, and "
            f"{self.limits.utmost_seconds:.0f} s were allowed; all would take about {all_of_it} s "
            f"(--seconds {all_of_it})"
        )

    def _share(self, number: int) -> float:
        """Seconds for this set's rounds: an equal part of what is left of the planned time."""
        planned = self.limits.processes
        if number >= planned:
            return self.limits.workload_seconds / planned
        return max(0.0, self.limits.workload_seconds - self.spent) / (planned - number)

    def _rounds_wanted(self, number: int) -> int:
        """The rounds that pay in this set, by what the sets before have shown of the scatter.

        The most that any open verdict wants: see `attnlab.judge.replication.rounds_per_process`.
        """
        limits = self.limits
        least = math.ceil(limits.min_rounds / limits.processes)
        most = math.ceil(limits.max_rounds / limits.processes)
        if number < 2 or not self._rounds or not self._challengers():
            return most
        round_cost, wanted = self.spent / self._rounds, 0.0
        for one in self._challengers():
            base = self._base()
            assert base is not None
            found = replication.components(verdicts.log_ratios(base.latency(), one.latency()))
            if found is None:
                return most
            wanted = max(wanted, replication.rounds_per_process(found, self.ready_seconds, round_cost))
        return math.ceil(min(most, max(least, wanted)))

    def _round(self, order: Sequence[Participant], turn: Callable[[Participant], None]) -> None:
        self._calibration = disturbance.calibration_seconds()
        for participant in order:
            if participant.ended is None:
                self._attempt(participant, turn)
        self._rounds += 1

    def _attempt(self, participant: Participant, step: Callable[[Participant], None]) -> None:
        """Take the step; the time of one that ends its participant, up to a deadline, is not taken from the others."""
        began = time.monotonic()
        participant.attempt(step)
        if participant.ended is not None:
            self._lost += time.monotonic() - began

    def _place(self, racing: Sequence[Participant]) -> None:
        """Let everybody's arrays lie elsewhere in memory from now on."""
        started = time.monotonic()
        for participant in racing:
            if participant.ended is None and participant.placeable:
                self._attempt(participant, place)
        self.account["placing"] += time.monotonic() - started

    def _turn(self, participant: Participant, *, number: int, placement: int, fresh: bool) -> None:
        """One turn, taken again while it is disturbed and there is time for that."""
        for attempt in range(_RETAKES + 1):
            started = time.monotonic()
            taken = self._take(participant, fresh=fresh and attempt == 0)
            taken |= {"process": number, "placement": placement, "retaken": attempt}
            lost = taken["waited"], _fault_share(participant, taken)
            taken["disturbed"] = float(any(part > self.limits.run_delay for part in lost))
            # of a long call another round is as good, and draws more; a crowded one would wait again
            last = participant.call_seconds >= self.limits.settle_below_seconds or participant.crowded
            if not taken["disturbed"] or attempt == _RETAKES or last or not self._may_retake():
                break
            self._retaken += time.monotonic() - started
        participant.turns.append(taken)

    def _hold_against_others(self, number: int) -> None:
        """Who waited in most turns, though others took next to nothing of the machine, waited for itself.

        Threads of JAX do, and the ranks of attention over processes: that is part of their time, and no disturbance.
        """
        waiting = {}
        for one in self.participants:
            mine = [turn for turn in one.turns if turn["process"] == number]
            waited = [turn for turn in mine if turn["waited"] > self.limits.run_delay]
            if 2 * len(waited) > len(mine):
                waiting[one.name] = one, waited
        if not waiting or self.others().notable:
            return
        for one, waited in waiting.values():
            one.crowded = True
            for turn in waited:
                turn["disturbed"] = float(_fault_share(one, turn) > self.limits.run_delay)

    def _may_retake(self) -> bool:
        return self._retaken < _RETAKEN_SHARE * max(self.spent, self.limits.workload_seconds)

    def _take(self, participant: Participant, *, fresh: bool) -> dict[str, float]:
        limits = self.limits
        long = participant.call_seconds >= limits.settle_below_seconds
        # the first call on fresh pages is never timed, however long it is
        settle = None if long and not fresh else 0.0 if long else limits.settle_seconds
        iterations = max(1, math.ceil(limits.turn_seconds / participant.call_seconds))
        stolen, pressed = disturbance.steal_seconds(), system.pressure_seconds()
        started = time.monotonic()
        found = participant.measure(LATENCY, iterations=iterations, settle_seconds=settle, placed=fresh)
        elapsed = time.monotonic() - started
        pressed = system.pressure_seconds() - pressed
        (seconds,), noted = found.samples, {name: column[0] for name, column in found.columns.items()}
        timed = min(elapsed, seconds * iterations)
        settled = min(elapsed - timed, noted.pop("settled_s"))
        self.account["timed"] += timed
        self.account["warm-up"] += settled
        self.account["waking and stopping"] += elapsed - timed - settled
        participant.spent += elapsed
        # a calibration that fell into a bad moment must not shorten every turn that follows
        participant.call_seconds = min(participant.call_seconds, seconds)
        delay = noted["run_delay_s"]
        return {
            "seconds": seconds,
            "round": self._rounds,
            "iterations": iterations,
            **noted,
            # where threads do not tell, the whole system may: settling included, and others' waiting too
            "waited": pressed / elapsed if math.isnan(delay) else delay / (seconds * iterations),
            "steal_s": disturbance.steal_seconds() - stolen,
            "calibration_s": self._calibration,
        }

    def _base(self) -> Participant | None:
        """Whom the others are compared with: the baseline, or where that has failed the first still racing."""
        running = [one for one in self.participants if one.ended is None and one.turns]
        # one that left early shares too few rounds with those that race on, perhaps none undisturbed
        running.sort(key=lambda participant: (participant.name != self.baseline, not participant.racing))
        return running[0] if running else None

    def _challengers(self) -> list[Participant]:
        """Those still racing against the base."""
        base = self._base()
        return [one for one in self.racing if one is not base and one.turns]

    def _nobody_to_pair(self) -> bool:
        """Whether all but the base have left, or all have failed."""
        left = any(not one.racing for one in self.participants)
        return self._base() is None or (left and not self._challengers())

    def _let_leave(self, number: int) -> None:
        if number + 1 < _FIRST_SETS:
            return
        share = self.limits.workload_seconds / len(self.participants) * (number + 1) / self.limits.processes
        for participant in self._challengers():
            if participant.spent > share:
                verdict = self._verdict(participant)
                if verdict and (verdict.low > _CLEAR or verdict.high < 1 / _CLEAR):
                    participant.racing = False
                    self.spent -= participant.spent - participant.apart  # is not taken from the others

    def _open(self) -> list[Participant]:
        """Those whom further processes may tell apart."""
        above = self.limits.further_above
        if not above:
            return [one for one in self._challengers() if not self._decided(one)]
        running = [one for one in self.participants if one.ended is None and one.turns]
        running.sort(key=lambda one: one.latency().median)
        ran = {one.name: implementation_of(one.result()) for one in running}
        first = [one for one in running if ran[one.name] == ran[running[0].name]]
        for one in (other for other in running if other not in first and other.racing):
            verdict = self._verdict(one, first[0])
            if verdict and verdict.kind is verdicts.Kind.UNDECIDED and first[0].racing:
                # with all names of the fastest kernel: any of them may be the fastest in the end
                return [*(name for name in first if name.racing), one] if verdict.ratio > 1 + above else []
        return []

    def _decided(self, participant: Participant) -> bool:
        verdict = self._verdict(participant)
        if verdict is None:
            return False
        narrow = verdict.low > 0 and verdict.high / verdict.low < (1 + self.limits.noise_margin) ** 2
        return narrow or verdict.kind is not verdicts.Kind.UNDECIDED

    def _verdict(self, participant: Participant, base: Participant | None = None) -> Verdict | None:
        """The participant against `base` (None: the race's), or None where the two share no round that counts."""
        base = base or self._base()
        if base is None or not {t["round"] for t in base.turns} & {t["round"] for t in participant.turns}:
            return None
        running = sum(one.ended is None for one in self.participants)
        return verdicts.compare(
            base.latency(),
            participant.latency(),
            comparisons=max(1, running - 1),
            margin=self.limits.noise_margin,
        )


def _far_behind(racing: Sequence[Participant]) -> list[Participant]:
    """Those that are out of all proportion slower: a few rounds tell, and more would take the others' time."""
    fastest = min(one.call_seconds for one in racing)
    return [one for one in racing if one.call_seconds > _FAR * fastest]


def _fault_share(participant: Participant, turn: Mapping[str, float]) -> float:
    """The part of the turn that went into fresh pages which the contender's other turns did without."""
    if "minor_faults" not in turn:
        return 0.0
    faults = [one["minor_faults"] / one["iterations"] for one in (*participant.turns, turn)]
    return (faults[-1] - min(faults)) * _FAULT_SECONDS / turn["seconds"]


def place(participant: Participant) -> None:
    """Let the participant's arrays lie elsewhere in memory; where they cannot, that is noted once."""
    reason = participant.ask("place")
    if reason:
        participant.placeable = False
        participant.facts["placement"] = f"one a process: {reason}"


def latin_square(entries: Sequence[T], seed: int) -> Iterator[list[T]]:
    """Endless rounds in which every one of `entries` takes every place equally often.

    The order is shuffled once a block of len(entries) rounds and rotated one place a round; two of them
    alternate as A B, B A, B A, A B, which cancels a linear drift.
    """
    generator = random.Random(seed)
    order = list(entries)
    if len(order) == 2:
        while True:
            first, second = order
            yield from ([first, second], [second, first], [second, first], [first, second])
    while True:
        generator.shuffle(order)
        for shift in range(max(1, len(order))):
            yield order[shift:] + order[:shift]
