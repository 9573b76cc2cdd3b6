"""Who is first at one workload, by how much and how sure, who shares the place, and whether the machine can tell.

The contender with the least median, or who is ahead of it pair by pair, is the reference and every other is compared
with it. Those that are not decidedly slower share the first place: "first" is a set, and a set of one is a win.

Choosing the reference from the same data costs no confidence. Let every interval against the *truly*
fastest cover, which fails with probability 5 % at most when the error is shared among k - 1 comparisons.
Then the truly fastest is never decidedly slower than the reference, so it is in the first set; and where
that set has one member, it is the truly fastest, whose intervals cover (Gupta 1965, "On some multiple
decision rules"; Hsu 1984, "Constrained simultaneous confidence intervals for multiple comparisons with
the best").
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from attnlab.stats.replication import Speed, speeds
from attnlab.stats.verdicts import MARGIN, Kind, Verdict, latencies, verdicts_against
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

_ENTRY = re.compile(r"#(\d+)$")


def entered_once(name: str) -> str:
    """The contender behind an entry: ``torch_eager#2`` is ``torch_eager``."""
    return _ENTRY.sub("", name)


def is_second_entry(name: str) -> bool:
    """Whether `name` is a further entry of a contender that is there already."""
    return _ENTRY.search(name) is not None


def implementation_of(result: Result) -> str:
    """What really ran, told apart from other implementations.

    Two backends of one library that report the same fused attention kernel are one implementation under two names;
    sharing a matrix product or a BLAS library does not make them one. Settings count: the same kernel with other
    threads is another choice to a user. Around one kernel two backends may make different blocks, and send different
    parts between the ranks of a library ``..._ranks``, so that these are told apart by backend alone. Where a
    stored result does not tell its library, the backend is an implementation of its own.
    """
    settings = entered_once(result.contender).partition("[")[2]
    fused = result.kernel is not None and "attention" in result.kernel and result.workload.d_model is None
    alone = result.library is not None and not result.library.endswith("_ranks")
    ran = f"{result.library}:{result.kernel}" if fused and alone else result.backend
    return f"{ran}[{settings}" if settings else ran


@dataclass(frozen=True)
class Standing:
    """One contender's place at one workload.

    `seconds` is the median call over the undisturbed rounds, of which there were `rounds`; `speeds` are two where it
    has two, by process or placement. The verdicts' ratios are this contender / best and this contender / baseline; None
    for the best, or the baseline, itself, and where too few processes are shared for any interval.
    """

    contender: str
    implementation: str
    seconds: float
    rounds: int
    speeds: tuple[Speed, ...]
    against_best: Verdict | None
    against_baseline: Verdict | None


@dataclass(frozen=True)
class Ranking:
    """Everyone measured on one workload: the best, then by median."""

    workload: Workload
    standings: tuple[Standing, ...]
    baseline: str | None

    @property
    def best(self) -> Standing:
        """The reference of all comparisons."""
        return self.standings[0]

    @cached_property
    def first(self) -> tuple[Standing, ...]:
        """The best, and those that are not decidedly slower; contenders without an interval are not here."""
        return tuple(
            one
            for one in self.standings
            if one is self.best or (one.against_best is not None and one.against_best.kind is not Kind.SLOWER)
        )

    @cached_property
    def near(self) -> tuple[Standing, ...]:
        """The best, and those that are known to be hardly slower: between these other things may decide."""
        return tuple(one for one in self.first if one.against_best is None or one.against_best.close)

    @property
    def decided(self) -> bool:
        """Whether there was anything to compare the best with, and processes enough to do it."""
        return any(one.against_best is not None for one in self.standings[1:])

    @property
    def runner_up(self) -> Standing | None:
        """The fastest that is decidedly slower than the best and really another implementation."""
        taken = {one.implementation for one in self.first}
        for one in self.standings[1:]:
            slower = one.against_best is not None and one.against_best.kind is Kind.SLOWER
            if slower and one.implementation not in taken:
                return one
        return None

    def of(self, contender: str) -> Standing | None:
        """The standing of `contender`, or None if it was not measured here."""
        return self._by_contender.get(contender)

    def between(self, one: str, other: str) -> Verdict | None:
        """`other` / `one`, two that were measured here; None where neither is the best or the baseline.

        Whoever runs the implementation of the best stands for it.
        """
        for base, name in ((one, other), (other, one)):
            ours, mine = self._by_contender[base], self._by_contender[name]
            found = mine.against_baseline if base == self.baseline else None
            if ours.implementation == self.best.implementation != mine.implementation:
                found = mine.against_best
            if found is not None:
                return found if base == one else found.turned
        return None

    @cached_property
    def _by_contender(self) -> dict[str, Standing]:
        return {one.contender: one for one in self.standings}


def rank(
    results: Mapping[str, Result],
    *,
    baseline: str,
    margin: float = MARGIN,
) -> Ranking | None:
    """The ranking of `results` (measured, all of one workload, by contender), or None if there are none.

    `margin` is the relative difference that counts as none. Second entries of a contender must have been left out.
    """
    times = latencies(results.values())
    if not times:
        return None
    medians = {name: one.median for name, one in times.items()}
    best, against_best = _reference(results, medians, margin)
    against_baseline = against_best if baseline == best else decidable(results.values(), baseline, margin)
    if baseline != best and baseline in against_best:  # one comparison has one interval
        against_baseline[best] = against_best[baseline].turned
    order = sorted(times, key=lambda name: (name != best, medians[name]))
    standings = tuple(
        Standing(
            contender=name,
            implementation=implementation_of(results[name]),
            seconds=medians[name],
            rounds=len(set(times[name].by_round()) - times[name].disturbed_rounds),
            speeds=speeds(times[name]),
            against_best=against_best.get(name),
            against_baseline=against_baseline.get(name),
        )
        for name in order
    )
    workload = next(iter(results.values())).workload
    return Ranking(workload, standings, baseline if baseline in times else None)


def decidable(
    results: Iterable[Result],
    baseline: str,
    margin: float,
    comparisons: int | None = None,
) -> dict[str, Verdict]:
    """`verdicts_against` without those that rest on too few processes for an interval."""
    found = verdicts_against(results, baseline, comparisons=comparisons, margin=margin)
    return {name: verdict for name, verdict in found.items() if verdict.low > 0}


def _reference(
    results: Mapping[str, Result], medians: Mapping[str, float], margin: float
) -> tuple[str, dict[str, Verdict]]:
    """The contender with the least median, or one that is ahead pair by pair (the machine may drift).

    With the verdicts on all others against it.
    """
    order = sorted(medians, key=lambda name: medians[name])
    best = order[0]
    verdicts = decidable(results.values(), best, margin)
    for name in order:
        if name in verdicts and verdicts[name].ratio < 1:
            best, verdicts = name, decidable(results.values(), name, margin)
    return best, verdicts


# -- who is first ------------------------------------------------------------------------------------


class Sure(StrEnum):
    """How sure the first place is.

    DECIDED: every other implementation that was compared is slower with its whole interval. CLOSE: some are not, and
    these are at most 5 % slower. TIE: of some not even that is known. NO_INTERVAL: too few undisturbed processes to
    compare anybody. ALONE: nothing else was measured. NOBODY: nothing was.
    """

    DECIDED = "decided"
    CLOSE = "close"
    TIE = "tie"
    NO_INTERVAL = "no interval"
    ALONE = "alone"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Lead:
    """How many times as fast as another the winner is, with its interval; the ends are None where there is none."""

    over: str
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Winner:
    """Who is first at one workload.

    `first` holds the winner and whoever is tied with it, one name an implementation, the winner in front; nobody where
    nobody was measured. `seconds` is
    the winner's median call. `ahead` is over the fastest other implementation (one that is tied, where there is one),
    and `over_baseline` over the contender that the run compares with; None where that is the winner itself or has no
    time. `not_compared` were measured, with too few undisturbed processes for an interval.
    """

    sure: Sure
    first: tuple[str, ...]
    seconds: float
    ahead: Lead | None
    over_baseline: Lead | None
    not_compared: tuple[str, ...]

    @property
    def name(self) -> str:
        """The winner, or the fastest of those tied."""
        return self.first[0]


def winner(ranking: Ranking | None, order: Sequence[str] = ()) -> Winner:
    """What `ranking` says of the first place.

    order : names, of which the first that ran an implementation stands for it; by default the fastest does. Two names
    of one kernel (see `ranking.implementation_of`) are one implementation, and no rivals.
    """
    if ranking is None:
        return Winner(Sure.NOBODY, (), math.nan, None, None, ())
    best = ranking.best
    names = {one.contender: place for place, one in enumerate(ranking.standings)}
    names |= {name: place - len(order) for place, name in enumerate(order) if name in names}
    others = [one for one in ranking.standings if one.implementation != best.implementation]
    compared = [one for one in others if one.against_best is not None]
    by_kernel: dict[str, list[str]] = {}
    for one in ranking.first:
        by_kernel.setdefault(one.implementation, []).append(one.contender)
    shown = [min(same, key=names.__getitem__) for same in by_kernel.values()]
    if not others:
        sure = Sure.ALONE
    elif not compared:
        sure = Sure.NO_INTERVAL
    else:
        unclear = Sure.CLOSE if ranking.near == ranking.first else Sure.TIE
        sure = unclear if len(shown) > 1 else Sure.DECIDED
    ahead = min(compared, key=_ratio) if compared else next(iter(others), None)
    return Winner(
        sure,
        tuple(shown),
        best.seconds,
        None if ahead is None else _lead(ahead.contender, ahead.against_best, ahead.seconds / best.seconds),
        _over_baseline(ranking, best),
        tuple(one.contender for one in others if compared and one.against_best is None),
    )


def _ratio(one: Standing) -> tuple[bool, float]:
    """Those tied first, then the others, the fastest first."""
    assert one.against_best is not None
    return one.against_best.kind is Kind.SLOWER, one.against_best.ratio


def _over_baseline(ranking: Ranking, best: Standing) -> Lead | None:
    baseline = ranking.of(ranking.baseline) if ranking.baseline is not None else None
    if baseline is None or baseline.implementation == best.implementation:
        return None
    return _lead(baseline.contender, baseline.against_best, baseline.seconds / best.seconds)


def _lead(over: str, verdict: Verdict | None, medians: float) -> Lead:
    if verdict is None:
        return Lead(over, medians, None, None)
    return Lead(over, verdict.ratio, verdict.low, verdict.high)


# -- the self-test -----------------------------------------------------------------------------------
#
# One contender is entered twice, so that any difference between its two entries is noise. Its figures are those of the
# workload that they were seen on: a machine is disturbed for seconds, not for a run.


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

    @property
    def judged(self) -> tuple[Twin, ...]:
        """Twins that have an interval."""
        return tuple(one for one in self.twins if one.verdict.low > 0)

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
