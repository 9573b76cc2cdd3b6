"""What is known of one candidate while it is judged (`Seat`), and what is told of it (`Record`), its score included.

The reward is log2 of the lower end of the speedup's interval, so that chance cannot win it. All records of one call are
wrong with a probability of 1 % together: half of that is shared among all candidates, half among those that were
measured again, on visits that nobody chose them by (Bonferroni). So the best of a hundred copies of the reference is
not rewarded.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from attnlab.judge.candidates import Candidate
from attnlab.judge.sandbox import Sandbox
from attnlab.processes import Failed
from attnlab.stats.intervals import Verdict, compare, log_ratios
from attnlab.workload.result import Measurement

Status = Literal["judged", "wrong", "caught", "failed", "refused"]
#: two-sided, of all candidates together: a lower end is too high half as often
ALPHA = 0.01
LOWEST = -1.0
#: sums of squares and degrees of freedom of the visits of so many candidates before, newest last: six visits alone tell
#: little of how visits scatter on this machine
Scatter = deque[tuple[float, int]]
KEPT = 3
#: the kind of a failure where an answer is not what its inputs ask for, or something was done that nobody asked for
CAUGHT = "caught"
#: a round of visit v has the number v · this + its place
ROUNDS = 1000


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What is told of one candidate; times in seconds, None for what was not measured.

    status : "judged"; "wrong" (an answer before the clock); "caught" (a timed answer, or a forbidden call); "failed"
    (crash, hang, memory); "refused" (no candidate). budget : the largest share of the error budget that an answer took.
    precision : where it rounds. speedup : over the reference, with the ends of its interval. verdict : "faster",
    "slower", "equivalent" or "undecided". disturbed : visits in which other programs used the cores; where these are
    most, nothing is rewarded. among : candidates that the interval allows for having chosen from. measured_again :
    whether the interval rests on visits after the last selection. empty_seconds : of a call that computes nothing,
    which is in all times. at_once : calls that the judge asks for in one message, which may be computed as one batch.
    output : what the candidate printed, its own words, control characters escaped.
    """

    name: str
    digest: str = ""
    status: Status
    reason: str = ""
    correct: bool = False
    reward: float = 0.0
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None
    budget: float | None = None
    precision: str | None = None
    violations: list[str] = []
    questions: int = 0
    seconds: float | None = None
    reference_seconds: float | None = None
    empty_seconds: float | None = None
    at_once: int = 1
    setup_seconds: float | None = None
    visits: int = 0
    disturbed: int = 0
    measured_again: bool = False
    among: int = 1
    reference: str = ""
    workload: dict[str, Any] = {}
    sandbox: bool = True
    output: str = ""


def escaped(text: str, kept: str = "") -> str:
    """A candidate's own words, safe to show anywhere: what cannot be printed is escaped but for what is `kept`."""
    known = ((one, one.isprintable() or one in kept) for one in text)
    return "".join(one if is_safe else one.encode("unicode_escape").decode() for one, is_safe in known)


@dataclass
class Seat:
    """One candidate in its sandbox, and what its visits found.

    seconds : of a call, as it was first seen. turns : by round, seconds of a call.
    """

    candidate: Candidate
    sandbox: Sandbox
    record: Record
    seconds: float = 0.0
    turns: dict[int, float] = field(default_factory=dict)

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
        except Failed as fault:
            found = self.record
            found.status = "failed" if fault.kind != CAUGHT else "caught" if found.correct else "wrong"
            found.reason = escaped(str(fault))
            found.violations += [found.reason] if found.status == "caught" else []
            found.correct = False
            self.sandbox.close()

    def latencies(self, reference: Seat, visits: Sequence[int]) -> list[Measurement]:
        """The reference's times and its own, of the rounds of these visits that both have; none without."""
        shared = [one for one in self.turns if one in reference.turns and one // ROUNDS in visits]
        columns = {"round": tuple(shared), "visit": tuple(one // ROUNDS for one in shared)}
        both = [tuple(seat.turns[one] for one in shared) for seat in (reference, self)]
        return [Measurement("latency", "s", samples, columns) for samples in both if shared]

    def against(self, reference: Seat, visits: Sequence[int], among: int, scatter: Scatter) -> Verdict | None:
        """Its times compared with the reference's over these visits; None where they share none."""
        both = self.latencies(reference, visits)
        known = math.fsum(one for one, _ in scatter), sum(freedom for _, freedom in scatter)
        return compare(*both, comparisons=among, alpha=ALPHA, known=known) if both else None

    def score(self, reference: Seat, visits: range, among: int, scatter: Scatter, noisy: set[int]) -> None:
        """Put into its record what these visits tell of the speed, and the reward.

        noisy : visits in which the reference waited for cores. It may suffer more from that than the candidate.
        """
        record, found = self.record, self.against(reference, visits, among, scatter)
        record.among = among
        if found is None:
            record.status, record.reason = "failed", "no visit of it could be compared with the reference"
            return
        theirs, mine = self.latencies(reference, visits)
        figures = [statistics.median(one) for one in log_ratios(theirs, mine).values()]
        if len(figures) > 1:
            scatter.append((statistics.pvariance(figures) * len(figures), len(figures) - 1))
        record.seconds, record.reference_seconds = mine.median, theirs.median
        record.visits, record.speedup = found.visits, 1 / found.ratio
        record.verdict, record.reward = "undecided", LOWEST
        if found.low > 0:
            record.low, record.high, record.verdict = 1 / found.high, 1 / found.low, str(found.kind)
            record.reward = max(LOWEST, math.log2(record.low))
        record.disturbed = len({*mine.visits.values()} & noisy)
        if 2 * record.disturbed > record.visits and record.reward > 0:
            record.reward = 0.0
            record.reason = f"not rewarded: others disturbed {record.disturbed} of {record.visits} visits"
