"""A score that chance cannot win: the speedup with an interval that allows for the choice of the best, and a reward.

The reward is log2 of the lower end of the speedup's interval. All records of one call are wrong with a probability of
1 % together: half of that is shared among all candidates, half among those that were measured again, on visits that
nobody chose them by (Bonferroni). So the best of a hundred copies of the reference is not rewarded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnlab.judge.visits import Seat
from attnlab.stats.verdicts import Verdict, compare

#: two-sided, of all candidates together: a lower end is too high half as often
ALPHA = 0.01
LOWEST = -1.0


def held_against(reference: Seat, seat: Seat, visits: Sequence[int], among: int) -> Verdict | None:
    """The comparison over these visits, as times: None where they share none."""
    mine, theirs = seat.latency(visits), reference.latency(visits)
    if mine is None or theirs is None or mine.by_round.keys().isdisjoint(theirs.by_round):
        return None
    return compare(theirs, mine, comparisons=among, alpha=ALPHA)


def score(reference: Seat, seat: Seat, visits: Sequence[int], among: int) -> None:
    """Put into its record what these visits tell of the speed, and the reward."""
    record, found = seat.record, held_against(reference, seat, visits, among)
    mine, theirs = seat.latency(visits), reference.latency(visits)
    record.among = among
    if found is None or mine is None or theirs is None:
        record.status, record.reason = "failed", "no visit of it could be compared with the reference"
        return
    record.seconds, record.reference_seconds = mine.median, theirs.median
    record.visits, record.speedup = found.visits, 1 / found.ratio
    record.verdict, record.reward = "undecided", LOWEST
    if found.low > 0:
        record.low, record.high, record.verdict = 1 / found.high, 1 / found.low, str(found.kind)
        record.reward = max(LOWEST, math.log2(record.low))
