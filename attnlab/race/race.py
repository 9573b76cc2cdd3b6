"""The race over one workload: in every round each contender has a turn in every set of processes, until it is decided.

Three levels of chance are drawn again and again: the process (each set is one of every contender), the placement of
its memory (released and taken anew every few rounds), and the round. A round goes over all sets, so that the machine's
drift falls on all pairs of processes alike. Verdicts are looked at when the rounds have doubled, not after each: an
interval that is looked at all the time shows a difference sooner or later. Who is out of all proportion slower has the
least rounds in three of the sets; whose question is answered leaves, and the time goes to the others.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.correctness import race_check
from attnlab.race import disturbance
from attnlab.race.instruments import Readings
from attnlab.race.limits import LEAST_ROUNDS, Limits
from attnlab.race.participant import Participant
from attnlab.race.variation import posed, restored
from attnlab.race.worker_process import Ended
from attnlab.stats.ranking import implementation_of
from attnlab.stats.verdicts import Kind, Verdict, verdicts_against
from attnlab.text import percent, seconds_text
from attnlab.workload.result import Outcome
from attnlab.workload.workload import Workload

T = TypeVar("T")
#: who is far behind has so many rounds, in so many sets
FAR_ROUNDS, FAR_SETS = 1, 3
#: a calibrated call that takes longer is believed
_SURE_SECONDS = 5e-3
#: the rounds of a set at which verdicts are looked at
_LOOKS = (6, 12, 24, 48)
#: rounds that a placement of the arrays is raced for, at least; and turns of so many times the seconds that it cost
_PLACED_FOR, _PLACED_WORTH = 4, 2.0
#: calls of a turn that others came before, at least: half of what such a turn takes would else be untimed
_LEAST_CALLS = 2
#: calls of a turn are timed in groups of so many seconds, at least: each tells whether its threads had their cores
_GROUP_SECONDS = 2e-3
#: seconds that a page fault takes, about: the kernel clears the page
_FAULT_SECONDS = 1e-6
#: who takes so many times as long for changed inputs as for those that stayed, by the least and by the median of so
#: many single calls each, keeps answers; of ten backends at six sizes the smaller ratio was 0.87 to 1.08
_MEMORY, _MEMORY_CALLS = 2.0, 3
#: so does who takes so many times as long for each of these on changed inputs as on the clock, and this much longer:
#: seconds for whatever has to be woken, and for a byte of inputs and output that is not in the caches any more
_ALONE, _ALONE_SECONDS, _ALONE_BYTE_SECONDS = 3.0, 2e-4, 0.2e-9
#: a turn takes longer than its process tells, by waking and answering; never so many times as long in all of them,
#: which are so many at least
_CLOCKS, _UNTOLD_SECONDS, _CLOCK_TURNS = 2.0, 0.05, 3
#: a disturbed turn is taken again so often, ...
_RETAKES = 2
#: ... while this part of the workload's time has not gone into it: a neighbour that stays is not waited for
_RETAKEN_SHARE = 0.5
#: rounds are made up for whose turns did not count, in so many times the workload's time
_LOST_SHARES = 4.0


@dataclass
class _Placement:
    """Where the arrays of a set lie for some rounds: what it cost to put them there, and seconds timed since."""

    number: int = 0
    rounds: int = 0
    cost: float = 0.0
    timed: float = 0.0

    @property
    def paid_off(self) -> bool:
        """Whether it has been raced for long enough that another one may be drawn."""
        return self.rounds >= _PLACED_FOR and self.timed >= _PLACED_WORTH * self.cost


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
    #: seconds of rounds so far, but for those of contenders that are far behind and for settling on fresh pages
    spent: float = 0.0
    _rounds: int = 0
    _turns: int = 0
    _retaken: float = 0.0
    #: seconds of turns that do not count
    _lost: float = 0.0
    _calibration: float = 0.0
    #: whose inputs were changed at least once
    _changed: set[str] = field(default_factory=set)
    #: how wide the widest interval is that is still asked for, in words, once that is known
    _widest: str = ""
    _placements: dict[int, _Placement] = field(default_factory=lambda: defaultdict(_Placement))

    @property
    def racing(self) -> list[Participant]:
        """Those who take part in the next round."""
        return [one for one in self.participants if one.racing and one.ended is None]

    def run(self, numbers: Sequence[int], *, last: bool = True) -> None:
        """Rounds over the sets `numbers`, whose processes the participants hold, until it is decided or time is up.

        last : these are the last of the planned sets; the time that is left is shared with those to come where False.
        """
        limits, began, latest, lost = self.limits, self.spent, 0.0, self._lost
        share = limits.workload_seconds * len(numbers) / limits.processes
        most = math.ceil(limits.max_rounds / limits.processes)
        least = min(most, max(LEAST_ROUNDS, math.ceil(limits.min_rounds / limits.processes)))
        for count in range(most):
            if count == FAR_ROUNDS:
                self.see_who_is_far()
            racing = [one for one in self.racing if not one.far or count < FAR_ROUNDS]
            # a round more would not fit; the first says little of it, as it begins on fresh pages
            elapsed = self.spent - began - min(self._lost - lost, _LOST_SHARES * share)
            over = bool(count) and elapsed + latest > share
            if not racing or (over and (count >= LEAST_ROUNDS or self.spent > limits.utmost_seconds)):
                break
            if count >= least and count in _LOOKS and last and not self._still_open(limits.narrow):
                break
            before = self.spent
            for number in numbers:
                if self.spent > limits.utmost_seconds:
                    break
                left = max(0.0, share - elapsed)
                self.on_event(
                    f"{racing[0].workload.label}: round {count + 1}, process {number + 1}; {self._widest}"
                    f"{left:.0f} s of rounds left"
                )
                self._round(number, count)
            latest = self.spent - before
        for number in numbers:
            self._look_back(number)
        for one in self.participants:
            one.attempt(self._convict)

    def over(self, sets: int) -> bool:
        """Whether nothing is left to find out after so many sets, or no time is left for another."""
        limits = self.limits
        if sets >= max(limits.processes, limits.most_processes) or self._base() is None:
            return True
        spent = self.spent >= limits.utmost_seconds
        if sets < limits.processes:
            return spent
        for one in self.participants:
            one.racing = one.racing and not one.far
        return spent or not self._still_open(None)

    def cut_short(self, sets: int) -> str | None:
        """That the time was over before all planned processes had raced, with figures; None where it was not."""
        turns = [turn for one in self.participants if not one.far for turn in one.turns]
        raced = len({turn["process"] for turn in turns})
        if raced >= self.limits.processes or self.spent <= self.limits.utmost_seconds:
            return None
        all_of_it = self.spent / max(1, raced) * self.limits.processes
        return (
            f"{raced} of {self.limits.processes} processes: their rounds took {self.spent:.0f} s, and "
            f"{self.limits.utmost_seconds:.0f} s were allowed; all would take about "
            f"{math.ceil(all_of_it)} s ({self.limits.typed(all_of_it)})"
        )

    def see_who_is_far(self) -> None:
        """Find those whose calls are out of all proportion slower than the fastest's.

        A short call may have been calibrated in a bad moment, in which its threads woke slowly: of such a one the first
        round tells.
        """
        fastest = min((one.call_seconds for one in self.racing), default=0.0)
        for one in self.racing:
            sure = one.turns or one.call_seconds > _SURE_SECONDS
            one.far = bool(sure) and one.call_seconds > self.limits.far_behind * fastest

    # -- rounds and turns --------------------------------------------------------------------------

    def _round(self, number: int, count: int) -> None:
        """Round `count` of set `number`."""
        racing = [one for one in self.racing if number in one.workers]
        racing = [one for one in racing if not one.far or (count < FAR_ROUNDS and number < FAR_SETS)]
        if not racing:
            return
        placement = self._placements[number]
        if placement.paid_off:
            started = time.monotonic()
            for one in racing:
                if one.placeable:
                    self._counted(one, partial(_place, number=number))
            elapsed = time.monotonic() - started
            self.account["placing"] += elapsed
            placement = self._placements[number] = _Placement(placement.number + 1, cost=elapsed)
        fresh = placement.rounds == 0
        self._calibration = disturbance.calibration_seconds()
        for one in in_turn(racing, count, seed=racing[0].workload.seed + number):
            if one.ended is None:
                before, turns = self.spent, len(one.turns)
                # of one that is far behind the check before the race was enough
                unused = fresh and not one.far
                self._counted(one, partial(self._turn, number=number, placement=placement, fresh=unused))
                self._lost += (self.spent - before) * sum(turn["disturbed"] for turn in one.turns[turns:])
        placement.rounds += 1
        self._rounds += 1

    def _counted(self, participant: Participant, step: Callable[[Participant], None]) -> None:
        """Take the step; its time counts unless it ends its participant, or that is far behind."""
        began = time.monotonic()
        participant.attempt(step)
        if participant.ended is None and not participant.far:
            self.spent += time.monotonic() - began

    def _turn(self, participant: Participant, number: int, placement: _Placement, fresh: bool) -> None:
        """One turn, taken again while it is disturbed and there is time for that."""
        for attempt in range(_RETAKES + 1):
            started = time.monotonic()
            taken = self._take(participant, number, placement, fresh and attempt == 0)
            taken |= {"process": number, "placement": placement.number, "retaken": attempt}
            lost = taken.pop("delayed"), _fault_share(participant, taken)
            taken["disturbed"] = float(any(part > self.limits.run_delay for part in lost))
            # of a long call another round is as good, and draws more; a crowded one would wait again
            last = participant.call_seconds >= self.limits.settle_below_seconds or participant.crowded
            if not taken["disturbed"] or attempt == _RETAKES or last or not self._may_retake():
                break
            self._retaken += time.monotonic() - started
        participant.turns.append(taken)

    def _may_retake(self) -> bool:
        return self._retaken < _RETAKEN_SHARE * max(self.spent, self.limits.workload_seconds)

    def _take(
        self, participant: Participant, number: int, placement: _Placement, fresh: bool, again: bool = False
    ) -> dict[str, float]:
        limits = self.limits
        long = participant.call_seconds >= limits.settle_below_seconds
        # the first call on fresh pages is never timed, however long it is
        short = participant.call_seconds < limits.settle_seconds
        settle = None if long and not fresh else limits.settle_seconds if short else 0.0
        least = 1 if long or participant.far else _LEAST_CALLS
        iterations = max(least, math.ceil(limits.turn_seconds / participant.call_seconds))
        groups = 1  # a device's calls are queued, and timed as a whole
        if participant.workload.device == "cpu":
            groups = min(iterations, max(1, int(iterations * participant.call_seconds / _GROUP_SECONDS)))
        stolen, pressed = disturbance.steal_seconds(), system.pressure_seconds()
        started = time.monotonic()
        self._turns += 1
        # in every second turn the inputs stay: who keeps answers has to compute in the others alone
        seed, changed = participant.changes.get(number, (0, False))
        seed, changed = (seed, False) if changed else (self._turns, True)
        rows = race_check.sampled_rows(participant.workload)
        told = participant.turn(
            number,
            seed,
            rows,
            change=again or participant.name not in self._changed,
            iterations=iterations,
            groups=groups,
            run_delay=math.inf if participant.crowded else limits.run_delay,
            settle_seconds=settle,
            placed=fresh,
        )
        elapsed = time.monotonic() - started
        pressed = system.pressure_seconds() - pressed
        found: Readings = told["readings"]
        (seconds,), noted = found.samples, {name: column[0] for name, column in found.columns.items()}
        single = noted.pop("first_s")
        if told["changed"] is not None and settle is not None:
            participant.singles[told["changed"]].append(single)
        clock = (elapsed - _UNTOLD_SECONDS) / (noted["settled_s"] + noted["whole_s"] * iterations)
        participant.clocks = min(participant.clocks, clock)
        asked, now = participant.workload, told["seed"]
        if now == seed:
            participant.changes[number] = seed, changed
            self._changed.add(participant.name)
        for answers in told["answers"]:
            as_drawn = answers if now is None else restored(answers, asked, now)
            self._prove(participant, number, as_drawn, asked if now is None else posed(asked, now))
        timed = min(elapsed, noted["whole_s"] * iterations)
        settled = min(elapsed - timed, noted.pop("settled_s"))
        self.account["timed"] += timed
        self.account["warm-up"] += settled
        placement.timed += timed
        placement.cost += settled if fresh else 0.0
        self.spent -= settled if fresh and not participant.far else 0.0
        self.account["waking and stopping"] += elapsed - timed - settled
        # a calibration that fell into a bad moment must not shorten every turn that follows
        participant.call_seconds = min(participant.call_seconds, seconds)
        if math.isnan(noted["run_delay_s"]):
            # where threads do not tell, the whole system may: settling included, and others' waiting too
            noted["waited"] = noted["delayed"] = pressed / elapsed
        else:
            noted["delayed"] = noted["run_delay_s"] / (seconds * noted["iterations"])
        return {
            "seconds": seconds,
            "round": self._rounds,
            **noted,
            "steal_s": disturbance.steal_seconds() - stolen,
            "calibration_s": self._calibration,
        }

    def _prove(
        self, participant: Participant, number: int, answers: dict[str, NDArray[Any]], asked: Workload
    ) -> None:
        """Raises Ended where the last timed answer is wrong; `answers` are those to the inputs of `asked`."""
        timed = participant.timed if asked is participant.workload else {}
        known = participant.known.get((number, asked.seed), timed)
        if known and all(np.array_equal(one, known[name]) for name, one in answers.items()):
            return
        rows = race_check.sampled_rows(participant.workload)
        reason = race_check.strayed(asked, rows, answers, timed, participant.computes_in)
        if reason:
            when = "right when it was checked, but on the clock, on inputs changed since: "
            raise Ended(Outcome.WRONG, when + reason)
        # where arrays lie elsewhere, sums may be taken in another order
        participant.known[number, asked.seed] = answers

    def _convict(self, participant: Participant) -> None:
        """Raises Ended for one that keeps answers, or whose clock tells less than the conductor's in every turn."""
        singles, timed = participant.singles, participant.latency().median if participant.turns else math.inf
        beside = _ALONE_SECONDS + _ALONE_BYTE_SECONDS * participant.workload.least_bytes
        limit, asked_again = _ALONE * timed + beside, [*participant.workers] * _MEMORY_CALLS
        while True:
            changed, same = ([one for one in singles[of] if not math.isnan(one)] for of in (True, False))
            told = len(changed) >= _MEMORY_CALLS or min(changed, default=math.inf) <= limit
            if told or not singles[True] or not asked_again:
                break
            number = asked_again.pop()  # one whose calls all waited, or that looks so after few of them
            participant.changes.pop(number, None)
            self._take(participant, number, self._placements[number], fresh=False, again=True)
        enough = min(len(changed), len(same)) >= _MEMORY_CALLS
        longer = [(of(changed) - beside) / of(same) for of in (min, statistics.median)] if enough else [0.0]
        if min(longer) > _MEMORY:
            times = f"{seconds_text(min(changed))} on changed inputs, {seconds_text(min(same))} on the same"
            raise Ended(Outcome.WRONG, f"it answers from memory: a call takes {times}")
        if len(changed) >= _MEMORY_CALLS and min(changed) > limit:
            times = f"{seconds_text(min(changed))} by itself, {seconds_text(timed)} on the clock"
            raise Ended(Outcome.WRONG, f"it answers from memory: a call takes {times}")
        if participant.clocks > _CLOCKS and len(participant.turns) >= _CLOCK_TURNS:
            said = f"its clock disagrees: its turns took at least {participant.clocks:.1f} times what it told"
            raise Ended(Outcome.WRONG, said)

    def _look_back(self, number: int) -> None:
        """Judge the turns of a set again, now that all are known.

        One that went into fresh pages, which later turns did without, is disturbed. Who waited in most turns, though
        others took next to nothing of the machine, waited for itself: threads of JAX do, and the ranks of attention
        over processes. That is part of their time, and no disturbance.
        """
        alone = None
        for one in self.participants:
            mine = [turn for turn in one.turns if turn["process"] == number]
            waited = sum(turn["waited"] > self.limits.run_delay for turn in mine)
            most = 2 * waited > len(mine)
            if most and alone is None:
                alone = not self.others().notable
            one.crowded = one.crowded or bool(most and alone)
            for turn in mine:
                if most and alone:
                    turn["seconds"], turn["disturbed"] = turn["whole_s"], 0.0
                if _fault_share(one, turn) > self.limits.run_delay:
                    turn["disturbed"] = 1.0

    # -- what is still to be found out -------------------------------------------------------------

    def _base(self) -> Participant | None:
        """Whom the others are compared with: the baseline, or where that has failed the fastest still racing."""
        running = [one for one in self.participants if one.ended is None and one.turns]
        # one that left early shares too few rounds with those that race on, perhaps none undisturbed
        running.sort(key=lambda one: (one.name != self.baseline, not one.racing, one.latency().median))
        return running[0] if running else None

    def _still_open(self, narrow: float | None) -> bool:
        """Whether a question is open; who has none to answer any more leaves the race.

        A verdict is open while it is undecided or, where `narrow` is given, its interval reaches further than that.
        Asked are all verdicts against the baseline where `Limits.further_above` is 0. Else it is who is first: the
        fastest against all that may be as fast, and over the next; without `narrow`, whether its lead is of more than
        `further_above` and undecided.
        """
        running = [one for one in self.participants if one.ended is None and one.turns]
        above = self.limits.further_above
        fastest = min(running, key=lambda one: one.latency().median, default=None)
        base = fastest if above else self._base()
        if base is None:
            return False
        results = {one.name: one.result() for one in running}
        asked = {one.name for one in running if one is not base and one.racing and not one.far}
        verdicts = verdicts_against(results.values(), base.name, margin=self.limits.noise_margin)
        ran = {name: implementation_of(one) for name, one in results.items()} if above else {}
        names = {name for name in ran if ran[name] == ran[base.name]}
        rivals = {name: one for name, one in verdicts.items() if name in asked - names}
        wanted = {name for name, one in rivals.items() if _open(one, narrow)}
        if above and rivals:
            slower = [name for name, one in rivals.items() if one.kind is Kind.SLOWER]
            beside = [name for name in rivals if name not in slower]
            if narrow is None:
                nearest = min(beside, key=lambda name: rivals[name].ratio, default="")
                wanted &= {nearest} if nearest and rivals[nearest].ratio > 1 + above else set()
            else:
                nearest = min(slower, key=lambda name: rivals[name].ratio, default="")
                wanted &= {*beside, *([] if beside else [nearest])}
        if not wanted:
            return False
        wide = [math.sqrt(rivals[name].high / rivals[name].low) - 1 for name in wanted if rivals[name].low]
        if len(wide) == len(wanted):
            self._widest = (
                f"intervals up to ± {percent(max(wide))}, ± {percent(self.limits.narrow)} is enough, "
            )
        for one in running:
            one.racing = one.racing and (one is base or one.name in wanted or one.name in names)
        return True


def _open(verdict: Verdict, narrow: float | None) -> bool:
    wide = verdict.low <= 0 or verdict.high / verdict.low > (1 + (narrow or 0.0)) ** 2
    return verdict.kind is Kind.UNDECIDED if narrow is None else wide


def _fault_share(participant: Participant, turn: Mapping[str, float]) -> float:
    """The part of the turn that went into fresh pages which the contender's other turns did without."""
    if "minor_faults" not in turn:
        return 0.0
    faults = [one["minor_faults"] / one["iterations"] for one in (*participant.turns, turn)]
    return (turn["minor_faults"] / turn["iterations"] - min(faults)) * _FAULT_SECONDS / turn["seconds"]


def _place(participant: Participant, number: int) -> None:
    """Let the participant's arrays lie elsewhere in memory; where they cannot, that is noted once."""
    participant.changes.pop(number, None)
    reason = participant.ask("place", number)
    if reason:
        participant.placeable = False
        participant.facts["placement"] = f"one a process: {reason}"


def in_turn(entries: Sequence[T], count: int, seed: int) -> list[T]:
    """The order of round `count`, in which every one of `entries` takes every place equally often.

    Shuffled once a block of len(entries) rounds and rotated one place a round; two of them alternate as A B, B A, B A,
    A B, which cancels a linear drift.
    """
    size = max(1, len(entries))
    block, shift = divmod(count, 4 if size == 2 else size)
    order = list(entries)
    random.Random(f"{seed} {block}").shuffle(order)
    if size == 2:
        return order[::-1] if shift in (1, 2) else order
    return order[shift:] + order[:shift]
