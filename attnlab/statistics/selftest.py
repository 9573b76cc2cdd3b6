"""The self-test: one contender is entered twice, so that any difference between its two entries is noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attnlab.contract.result import Result
from attnlab.contract.workload import Workload
from attnlab.statistics.pairing import MARGIN, Kind, Verdict
from attnlab.statistics.ranking import entered_once, is_second_entry
from attnlab.statistics.verdicts import disturbed_in, verdicts_against


@dataclass(frozen=True)
class Twin:
    """A contender against itself on one workload: second entry / first entry."""

    workload: Workload
    contender: str
    verdict: Verdict

    @property
    def differs(self) -> bool:
        """Whether the whole interval lies outside the margin around 1."""
        return self.verdict.kind in (Kind.FASTER, Kind.SLOWER)

    @property
    def proven(self) -> float:
        """How far from 1 the nearer end of the interval is, as a fraction; 0 where 1 lies in it."""
        low, high = self.verdict.low, self.verdict.high
        if low <= 1 <= high:
            return 0.0
        return low - 1 if low > 1 else 1 / high - 1

    @property
    def deviation(self) -> float:
        """How far the ratio is from 1, as a fraction, whichever entry was slower."""
        return math.exp(abs(math.log(self.verdict.ratio))) - 1


@dataclass(frozen=True)
class SelfTest:
    """All twins of a run. Empty where no contender was entered twice, or none was measured twice."""

    twins: tuple[Twin, ...]
    margin: float = MARGIN

    @property
    def failures(self) -> tuple[Twin, ...]:
        """Twins that differ from each other though they are one contender."""
        return tuple(one for one in self.twins if one.differs)

    @property
    def resolution(self) -> float:
        """The smallest relative difference to believe anywhere, as a fraction.

        That is the margin, or the largest difference that a contender is proven to have had from itself, rounded up
        to 0.1 %. Proven, and not estimated, so that one workload with few rounds does not silence all others.
        """
        worst = max((one.proven for one in self.failures), default=0.0)
        return max(self.margin, _up(worst))

    def resolution_at(self, workload: Workload) -> float:
        """`resolution`, or the difference estimated for this very workload where its self-test failed."""
        here = max((one.deviation for one in self.failures if one.workload == workload), default=0.0)
        return max(self.resolution, _up(here))


def _up(fraction: float) -> float:
    return math.ceil(fraction * 1000 - 1e-9) / 1000


def self_test(by_workload: Mapping[Workload, Mapping[str, Result]], *, margin: float = MARGIN) -> SelfTest:
    """Compare every second entry with the first, workload by workload.

    `by_workload` holds the measured results by the name they raced under. Each interval is a 95 % one by itself, not
    shared among the workloads: here a false alarm costs less than a machine that is believed though it is busy.
    """
    twins: list[Twin] = []
    for workload, results in by_workload.items():
        disturbed = disturbed_in(results.values())
        for name in filter(is_second_entry, results):
            pair = [results[one] for one in (entered_once(name), name) if one in results]
            verdicts = verdicts_against(pair, entered_once(name), disturbed=disturbed, margin=margin)
            if name in verdicts:
                twins.append(Twin(workload, entered_once(name), verdicts[name]))
    return SelfTest(tuple(twins), margin)
