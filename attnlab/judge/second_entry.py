"""The self-test: one contender is entered twice, so that any difference between its two entries is noise.

Its figures are those of the workload that they were seen on: a machine is disturbed for seconds, not for a run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from attnlab.judge.pairing import MARGIN, Kind, Verdict
from attnlab.judge.ranking import entered_once, is_second_entry
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload


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
    def deviation(self) -> float:
        """How far the ratio is from 1, as a fraction, whichever entry was slower."""
        return math.exp(abs(math.log(self.verdict.ratio))) - 1

    @property
    def between(self) -> float | None:
        """Standard deviation between processes, as a fraction, None where it cannot be told.

        That of a pair's log ratio by sqrt(2): each of the two processes adds its own.
        """
        return None if math.isnan(self.verdict.spread) else self.verdict.spread / math.sqrt(2)


@dataclass(frozen=True)
class SelfTest:
    """All twins of a run. Empty where no contender was entered twice, or none was measured twice."""

    twins: tuple[Twin, ...]
    margin: float = MARGIN

    @property
    def failures(self) -> tuple[Twin, ...]:
        """Twins that differ from each other though they are one contender."""
        return tuple(one for one in self.twins if one.differs)

    def floor(self, workload: Workload) -> float:
        """The smallest relative difference to believe on `workload`, as a fraction.

        That is the margin, or how far one contender differed from itself there where the self-test failed, rounded up
        to 0.1 %.
        """
        here = max((one.deviation for one in self.failures if one.workload == workload), default=0.0)
        return max(self.margin, _up(here))

    @property
    def between(self) -> float | None:
        """The median over workloads of the standard deviation between processes, as a fraction."""
        known = [one.between for one in self.twins if one.between is not None]
        return statistics.median(known) if known else None


def _up(fraction: float) -> float:
    return math.ceil(fraction * 1000 - 1e-9) / 1000


def self_test(by_workload: Mapping[Workload, Mapping[str, Result]], *, margin: float = MARGIN) -> SelfTest:
    """Compare every second entry with the first, workload by workload.

    `by_workload` holds the measured results by the name they raced under. Each interval is one by itself,
    not shared among the workloads: here a false alarm costs less than a machine that is believed though it is busy.
    """
    twins: list[Twin] = []
    for workload, results in by_workload.items():
        for name in filter(is_second_entry, results):
            pair = [results[one] for one in (entered_once(name), name) if one in results]
            verdicts = verdicts_against(pair, entered_once(name), margin=margin)
            if name in verdicts:
                twins.append(Twin(workload, entered_once(name), verdicts[name]))
    return SelfTest(tuple(twins), margin)
