"""What is said of a candidate: one record, and a reward that chance cannot win.

The reward is log2 of the lower end of the speedup's interval. All records of one call are wrong with a probability of
1 % together: half of that is shared among all candidates, half among those that were measured again, on visits that
nobody chose them by (Bonferroni). So the best of a hundred copies of the reference is not rewarded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from attnlab.judge.visits import Seat
from attnlab.stats.verdicts import Verdict, compare

#: two-sided, of all candidates together: a lower end is too high half as often
ALPHA = 0.01
LOWEST = -1.0
Status = Literal["judged", "wrong", "caught", "failed", "refused"]


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What is known of one candidate; times in seconds, None for what was not measured.

    status : "judged"; "wrong" (an answer before the clock); "caught" (a timed answer, or a forbidden call); "failed"
    (crash, hang, memory); "refused" (no candidate). budget : the largest share of the error budget that an answer took.
    precision : where it rounds. speedup : over the reference, with the ends of its interval. verdict : "faster",
    "slower", "equivalent" or "undecided". among : candidates that the interval allows for having chosen from.
    measured_again : whether the interval rests on visits after the last selection. output : what the candidate printed,
    its own words, control characters escaped.
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
    setup_seconds: float | None = None
    visits: int = 0
    measured_again: bool = False
    among: int = 1
    reference: str = ""
    workload: dict[str, Any] = {}
    sandbox: bool = True
    output: str = ""


def schema() -> dict[str, Any]:
    """The JSON schema of a record."""
    return msgspec.json.schema(Record)


def held_against(reference: Seat, seat: Seat, visits: Sequence[int], among: int) -> Verdict | None:
    """The comparison over these visits, as times: None where they share none."""
    mine, theirs = seat.latency(visits), reference.latency(visits)
    if mine is None or theirs is None or mine.by_round.keys().isdisjoint(theirs.by_round):
        return None
    return compare(theirs, mine, comparisons=among, alpha=ALPHA)


def scored(record: Record, reference: Seat, seat: Seat, visits: Sequence[int], among: int) -> Record:
    """The record with what these visits tell of the speed, and the reward."""
    found = held_against(reference, seat, visits, among)
    mine, theirs = seat.latency(visits), reference.latency(visits)
    record.among, record.budget, record.precision = among, seat.budget, seat.precision
    if found is None or mine is None or theirs is None:
        record.status, record.reason = "failed", "no visit of it could be compared with the reference"
        return record
    record.seconds, record.reference_seconds = mine.median, theirs.median
    record.visits, record.speedup = found.visits, 1 / found.ratio
    record.verdict, record.reward = "undecided", LOWEST
    if found.low > 0:
        record.low, record.high, record.verdict = 1 / found.high, 1 / found.low, str(found.kind)
        record.reward = max(LOWEST, math.log2(record.low))
    return record


def escaped(output: bytes) -> str:
    """A candidate's own words, safe to show anywhere."""
    text = output.decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text
    )
