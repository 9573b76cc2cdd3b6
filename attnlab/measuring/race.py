"""The race over one workload: interleaved rounds, until every verdict is decided or the time is spent.

Verdicts are computed after 30, 60, 120, ... rounds and not after each: an interval that is looked at all the
time shows a difference sooner or later. A contender that is out of all proportion slower or faster than the
baseline leaves as soon as an interval exists, when it has cost more than its share of the time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psutil

from attnlab.measuring.instruments import LATENCY
from attnlab.measuring.limits import Limits
from attnlab.measuring.participant import Participant
from attnlab.statistics import pairing
from attnlab.statistics.pairing import Verdict

T = TypeVar("T")
#: turns of the calibration loop
_LOOPS = 100_000
#: a ratio beyond this is clear at any look; a few looks more make no false claim of such a difference
_CLEAR = 1.5


@dataclass(kw_only=True)
class Race:
    """One workload's rounds over `participants`; their turns are the outcome.

    `account` takes the seconds spent timed, settling, and waking and stopping.
    """

    participants: Sequence[Participant]
    baseline: str
    limits: Limits
    account: dict[str, float]
    on_event: Callable[[str], None] = lambda text: None
    #: by round, the seconds of the calibration loop
    _calibration: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        """Race until it is decided. Returns at once where nobody takes part."""
        if not self.participants:
            return
        limits, started = self.limits, time.monotonic()
        workload = self.participants[0].workload
        least = pairing.least_rounds(max(1, len(self.participants) - 1))
        order = latin_square(range(len(self.participants)), seed=workload.seed)
        look = limits.min_rounds
        for index in range(limits.max_rounds):
            self.on_event(f"{workload.label}: round {index + 1}")
            self._round(index, next(order))
            kept = index + 1 - len(pairing.disturbed_rounds(self._calibration))
            if kept >= least:
                self._let_leave()
            # what those took who have left again is not taken from the others
            elapsed = (
                time.monotonic() - started - sum(one.spent for one in self.participants if not one.racing)
            )
            if kept < least:
                if elapsed > limits.workload_seconds + limits.extra_seconds:
                    return
                continue
            if elapsed > limits.workload_seconds or self._nobody_to_pair():
                return
            if kept >= look:
                look *= 2
                if all(map(self._decided, self._challengers())):
                    return

    def _round(self, index: int, order: Sequence[int]) -> None:
        self._calibration[index] = calibration_seconds()
        for place in order:
            participant = self.participants[place]
            if participant.racing and participant.ended is None:
                participant.attempt(partial(self._turn, index=index))

    def _turn(self, participant: Participant, index: int) -> None:
        limits = self.limits
        settle = limits.turn_seconds if participant.call_seconds < limits.settle_below_seconds else None
        iterations = max(1, math.ceil(limits.turn_seconds / participant.call_seconds))
        stolen, started = steal_seconds(), time.monotonic()
        found = participant.measure(LATENCY, iterations=iterations, settle_seconds=settle)
        elapsed = time.monotonic() - started
        (seconds,), noted = found["samples"], {name: column[0] for name, column in found["columns"].items()}
        timed = min(elapsed, seconds * iterations)
        settled = min(elapsed - timed, noted.pop("settled_s"))
        self.account["timed"] += timed
        self.account["warm-up"] += settled
        self.account["waking and stopping"] += elapsed - timed - settled
        participant.spent += elapsed
        # a calibration that fell into a bad moment must not shorten every turn that follows
        participant.call_seconds = min(participant.call_seconds, seconds)
        participant.turns.append(
            {
                "seconds": seconds,
                "round": index,
                "iterations": iterations,
                **noted,
                "steal_s": steal_seconds() - stolen,
                "calibration_s": self._calibration[index],
            }
        )

    def _base(self) -> Participant | None:
        """Whom the others are compared with: the baseline, or where that has failed the first still racing."""
        running = [participant for participant in self.participants if participant.ended is None]
        # one that left early shares too few rounds with those that race on, perhaps none undisturbed
        running.sort(key=lambda participant: (participant.name != self.baseline, not participant.racing))
        return running[0] if running else None

    def _challengers(self) -> list[Participant]:
        """Those still racing against the base."""
        base = self._base()
        return [one for one in self.participants if one is not base and one.racing and one.ended is None]

    def _nobody_to_pair(self) -> bool:
        """Whether all but the base have left, or all have failed."""
        left = any(not one.racing for one in self.participants)
        return self._base() is None or (left and not self._challengers())

    def _let_leave(self) -> None:
        share = self.limits.workload_seconds / len(self.participants)
        for participant in self._challengers():
            if participant.spent > share:
                verdict = self._verdict(participant)
                if verdict and (verdict.low > _CLEAR or verdict.high < 1 / _CLEAR):
                    participant.racing = False

    def _decided(self, participant: Participant) -> bool:
        verdict = self._verdict(participant)
        if verdict is None:
            return False
        narrow = verdict.low > 0 and verdict.high / verdict.low < (1 + self.limits.noise_margin) ** 2
        return narrow or verdict.kind is not pairing.Kind.UNDECIDED

    def _verdict(self, participant: Participant) -> Verdict | None:
        """The participant against the base, or None where the two share no round that counts."""
        base, disturbed = self._base(), pairing.disturbed_rounds(self._calibration)
        rounds = [{turn["round"] for turn in one.turns} for one in (base, participant) if one is not None]
        if base is None or not set.intersection(*rounds) - disturbed:
            return None
        running = sum(one.ended is None for one in self.participants)
        return pairing.compare(
            base.latency(),
            participant.latency(),
            disturbed=disturbed,
            comparisons=max(1, running - 1),
            margin=self.limits.noise_margin,
        )


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


def calibration_seconds() -> float:
    """Seconds that a fixed pure-Python loop takes now: about a millisecond, undisturbed."""
    start = time.perf_counter()
    for _ in range(_LOOPS):
        pass
    return time.perf_counter() - start


def steal_seconds() -> float:
    """CPU seconds that a hypervisor has taken from this machine since it started; 0 where it does not say."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))
