"""The state of a candidate while it is judged (`Seat`), and its record with the score (`Record`).

The reward is log2 of the lower end of the speedup's interval, so that luck is rarely rewarded. The probability that any
lower end in the records of one call is too high is 1 %. Half of it is shared among all candidates. The other half is
shared among those that were measured again, in visits that did not select them (Bonferroni). So the best of a hundred
copies of the reference is not rewarded.
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
#: probability, for all candidates together, that an interval misses; a lower end is too high half as often
ALPHA = 0.01
LOWEST = -1.0
#: sums of squares and degrees of freedom of the visits of the last `KEPT` candidates, newest last: six visits of one
#: candidate show little of the scatter between visits on this machine
Scatter = deque[tuple[float, int]]
KEPT = 3
#: the kind of a failure in which an answer is wrong, or a candidate does something that was not ordered
CAUGHT = "caught"
#: round r of visit v has the number v · ROUNDS + r
ROUNDS = 1000


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """The record of one candidate. Times are in seconds; None stands for what was not measured.

    status : "judged"; "wrong" (wrong in the exam); "caught" (wrong in the race, or it made a forbidden call); "failed"
    (crash, hang, memory); "refused" (the file holds no candidate, or none that fits this problem).
    budget : the largest share of the error budget that an answer took. precision : where the candidate rounds.
    speedup : over the reference. low, high : the ends of its interval.
    verdict : "faster", "slower", "equivalent" or "undecided".
    disturbed : visits in which other programs used the cores; if these are the majority, no reward is above 0.
    among : the number of candidates from which the best is chosen; the interval allows for that.
    measured_again : whether the interval comes only from visits after the last selection.
    empty_seconds : seconds of a message that computes nothing; the time of a call includes `empty_seconds / at_once`.
    at_once : calls in one message of the judge; a candidate may compute them as one batch.
    output : what the candidate printed, at most 2,000 bytes, control characters escaped.
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
    """A candidate's text, safe to show: characters that cannot be printed are escaped, except those in `kept`."""
    known = ((one, one.isprintable() or one in kept) for one in text)
    return "".join(one if is_safe else one.encode("unicode_escape").decode() for one, is_safe in known)


@dataclass
class Seat:
    """One candidate in its sandbox, and the results of its visits.

    seconds : of a call, the shortest in the last warm-up. turns : seconds of a call, by the number of the round.
    """

    candidate: Candidate
    sandbox: Sandbox
    record: Record
    seconds: float = 0.0
    turns: dict[int, float] = field(default_factory=dict)

    @property
    def racing(self) -> bool:
        """Whether no failure has ended its race."""
        return self.record.status == "judged"

    def attempt(self, step: Callable[..., object], *given: Any) -> None:
        """Take a step. A failure ends the race of this candidate, and its record says why."""
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
        """The reference's times and this candidate's, over the rounds of these visits that both have; empty if none."""
        shared = [one for one in self.turns if one in reference.turns and one // ROUNDS in visits]
        columns = {"round": tuple(shared), "visit": tuple(one // ROUNDS for one in shared)}
        both = [tuple(seat.turns[one] for one in shared) for seat in (reference, self)]
        return [Measurement("latency", "s", samples, columns) for samples in both if shared]

    def against(self, reference: Seat, visits: Sequence[int], among: int, scatter: Scatter) -> Verdict | None:
        """The verdict on its times against the reference's over these visits; None if they share no round."""
        both = self.latencies(reference, visits)
        known = math.fsum(one for one, _ in scatter), sum(freedom for _, freedom in scatter)
        return compare(*both, comparisons=among, alpha=ALPHA, known=known) if both else None

    def score(self, reference: Seat, visits: range, among: int, scatter: Scatter, noisy: set[int]) -> None:
        """Write the speed by these visits, and the reward, into the record.

        noisy : visits in which the reference waited for cores. That may slow the reference more than the candidate.
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
