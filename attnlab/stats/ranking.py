"""Which contender is first at one workload, by how much and how surely, and whether the machine is steady enough.

The reference is the contender with the least median, or one that is ahead of it visit by visit. Every other contender
is compared with it. Those that are not clearly slower share the first place: "first" is a set; a set of one is a win.

The reference is chosen from the same data, but this costs no confidence. Suppose that no verdict of a rival against the
*truly* fastest is wrong. This fails with a probability of at most 5 %, as the error is shared among all rivals. Several
names of one kernel are no rivals of each other; one of them stands for it, even if another one was luckier. Then the
truly fastest is never clearly slower than the reference, so it is in the first set. If that set has one member, this is
the truly fastest, and its verdicts are right (Gupta 1965, "On some multiple decision rules"; Hsu 1984, "Constrained
simultaneous confidence intervals for multiple comparisons with the best").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from attnlab.stats.intervals import MARGIN, Kind, Verdict, latencies, verdicts_against
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

_ENTRY = re.compile(r"#(\d+)$")


def entered_once(name: str) -> str:
    """The contender behind an entry: ``torch_eager#2`` is ``torch_eager``."""
    return _ENTRY.sub("", name)


def is_second_entry(name: str) -> bool:
    """Whether `name` is a further entry of a contender that is already entered."""
    return _ENTRY.search(name) is not None


def implementation_of(result: Result) -> str:
    """A name for what really ran; different implementations have different names.

    Two backends of one library that report the same fused attention kernel are one implementation under two names.
    Backends that only share a matrix product or a BLAS library are not. Settings count: the same kernel with other
    threads is another choice for a user. Two backends may make different blocks around one kernel, so blocks are
    distinguished by backend alone.
    """
    settings = entered_once(result.contender).partition("[")[2]
    fused = result.kernel is not None and "attention" in result.kernel and result.workload.d_model is None
    ran = f"{result.library}:{result.kernel}" if fused and result.library else result.backend
    return f"{ran}[{settings}" if settings else ran


@dataclass(frozen=True)
class Standing:
    """One contender's place at one workload.

    `seconds` is the median call over the undisturbed rounds. The ratios of the verdicts are this contender / best and
    this contender / baseline. They are None for the best, or the baseline, itself, and if too few visits are shared for
    an interval.
    """

    contender: str
    implementation: str
    seconds: float
    against_best: Verdict | None
    against_baseline: Verdict | None


@dataclass(frozen=True)
class Ranking:
    """Every contender that was measured on one workload: first the best, then the others by median."""

    standings: tuple[Standing, ...]

    @property
    def best(self) -> Standing:
        """The reference of all comparisons."""
        return self.standings[0]

    @cached_property
    def first(self) -> tuple[Standing, ...]:
        """The best, and those that are not clearly slower; contenders without an interval are not included."""
        tied = (one for one in self.standings if (v := one.against_best) and v.kind is not Kind.SLOWER)
        return (self.best, *tied)

    @cached_property
    def near(self) -> tuple[Standing, ...]:
        """The best, and those of `first` that are surely at most 5 % slower: other things may decide between these."""
        return tuple(one for one in self.first if one.against_best is None or one.against_best.close)

    def of(self, contender: str) -> Standing | None:
        """The standing of `contender`, or None if it was not measured here."""
        return next((one for one in self.standings if one.contender == contender), None)

    def names_of(self, standings: Iterable[Standing]) -> frozenset[str]:
        """The contenders of these standings, with all names of the same kernels."""
        kernels = {one.implementation for one in standings}
        return frozenset(one.contender for one in self.standings if one.implementation in kernels)


def rank(results: Mapping[str, Result], *, baseline: str, margin: float = MARGIN) -> Ranking | None:
    """The ranking of `results` (measured, all of one workload, by contender), or None if there are none.

    `margin` is the relative difference that counts as none. Second entries of a contender must have been left out.
    """
    times = latencies(results.values())
    if not times:
        return None
    medians = {name: one.median for name, one in times.items()}
    visits = {name: len({one.visits[index] for index in one.by_round}) for name, one in times.items()}
    order = sorted(medians, key=medians.__getitem__)
    # the luckiest of several names of a kernel would win too often: the one with the most visits stands for it, or the
    # first. One that was soon left out shares too few visits with the others to be the reference
    stands: dict[str, str] = {}
    for name in sorted(times, key=lambda one: -visits[one]):
        stands.setdefault(implementation_of(results[name]), name)
    able = [name for name in order if name in stands.values() and 2 * visits[name] > max(visits.values())]
    best = able[0]
    against_best = _against(best, results, margin)
    for name in able:  # not by medians, since the machine may drift: ahead visit by visit
        if name in against_best and against_best[name].ratio < 1:
            best, against_best = name, _against(name, results, margin)
    against_baseline = against_best if baseline == best else _against(baseline, results, margin)
    if baseline != best and baseline in against_best:  # the same comparison: the same interval
        against_baseline[best] = against_best[baseline].turned
    standings = tuple(
        Standing(
            contender=name,
            implementation=implementation_of(results[name]),
            seconds=medians[name],
            against_best=against_best.get(name),
            against_baseline=against_baseline.get(name),
        )
        for name in sorted(order, key=lambda name: name != best)
    )
    return Ranking(standings)


def _against(reference: str, results: Mapping[str, Result], margin: float) -> dict[str, Verdict]:
    """The verdicts on all others. Other names of the reference's kernel are no rivals: their error is separate."""
    kernel = implementation_of(results[reference]) if reference in results else None
    alike = [one for one in results.values() if implementation_of(one) == kernel]
    rivals = [
        one for one in results.values() if one.contender == reference or implementation_of(one) != kernel
    ]
    return decidable(alike, reference, margin, len(results) - 1) | decidable(rivals, reference, margin)


def decidable(
    results: Iterable[Result], baseline: str, margin: float, comparisons: int | None = None
) -> dict[str, Verdict]:
    """`verdicts_against` without the verdicts that have too few visits for an interval."""
    found = verdicts_against(results, baseline, comparisons=comparisons, margin=margin)
    return {name: verdict for name, verdict in found.items() if verdict.low > 0}


# -- what is first -----------------------------------------------------------------------------------


class Sure(StrEnum):
    """How sure the first place is.

    DECIDED: every other implementation that was compared is slower with its whole interval. CLOSE: some are not, and
    these are surely at most 5 % slower. TIE: for some, not even that is sure. NO_INTERVAL: too few undisturbed visits
    to compare any. ALONE: nothing else was measured. NOBODY: nothing was measured.
    """

    DECIDED = "decided"
    CLOSE = "close"
    TIE = "tie"
    NO_INTERVAL = "no interval"
    ALONE = "alone"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Lead:
    """How many times as fast as another contender the winner is, with an interval; its ends are None without one."""

    over: str
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Winner:
    """The first place at one workload.

    `first` holds the winner and those tied with it, one name for each implementation, the winner first; it is empty if
    nothing was measured. `seconds` is the winner's median call. `ahead` compares with the fastest other implementation
    (one that is tied, if there is one: the second of `first`). `not_compared` were measured, in too few undisturbed
    visits for an interval. `aliases` : by each further name of an implementation, the name that stands for it.
    """

    sure: Sure
    first: tuple[str, ...] = ()
    seconds: float = math.nan
    ahead: Lead | None = None
    not_compared: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The winner, or the fastest of those tied."""
        return self.first[0]


def winner(ranking: Ranking | None, order: Sequence[str] = ()) -> Winner:
    """What `ranking` says about the first place.

    order : names; the first of them that ran an implementation stands for it, by default the fastest. Two names of one
    kernel (see `implementation_of`) are one implementation, and no rivals.
    """
    if ranking is None:
        return Winner(Sure.NOBODY)
    best = ranking.best
    every = dict.fromkeys((*order, *(one.contender for one in ranking.standings)))
    places = {name: at for at, name in enumerate(every)}
    others = [one for one in ranking.standings if one.implementation != best.implementation]
    compared = [one for one in others if one.against_best is not None]
    known = {one.implementation for one in compared}
    first = dict.fromkeys(one.implementation for one in ranking.first)
    named: dict[str, str] = {}
    for one in sorted(ranking.standings, key=lambda one: places[one.contender]):
        # a name that left early may stand for a kernel that is first, unless its verdict says slower
        slower = one.against_best is not None and one.against_best.kind is Kind.SLOWER
        if one.implementation not in first or not slower:
            named.setdefault(one.implementation, one.contender)
    names = [named[kernel] for kernel in first]
    if not others:
        sure = Sure.ALONE
    elif not compared:
        sure = Sure.NO_INTERVAL
    elif len(names) > 1:
        tied = (one.against_best for one in ranking.first if one.implementation != best.implementation)
        sure = Sure.CLOSE if all(one and one.close for one in tied) else Sure.TIE
    else:
        sure = Sure.DECIDED
    rivals = sorted(
        compared, key=lambda one: (one not in ranking.first, one.against_best and one.against_best.ratio)
    )
    ahead = next(iter(rivals or others), None)
    if ahead:
        stands = next(one for one in others if one.contender == named[ahead.implementation])
        ahead = replace(stands if stands.against_best else ahead, contender=stands.contender)
        names = sorted(names, key=lambda name: (name != names[0], name != stands.contender))
    return Winner(
        sure,
        tuple(names),
        best.seconds,
        _lead(ahead, best),
        tuple({named[one.implementation]: None for one in others if one.implementation not in known}),
        {
            one.contender: named[one.implementation]
            for one in ranking.standings
            if one.contender not in named.values()
        },
    )


def _lead(other: Standing | None, best: Standing) -> Lead | None:
    if other is None:
        return None
    if (found := other.against_best) is None:
        return Lead(other.contender, other.seconds / best.seconds, None, None)
    return Lead(other.contender, found.ratio, found.low, found.high)


# -- the A/A control ---------------------------------------------------------------------------------
#
# One contender is entered twice, so that any difference between its two entries is noise. Each control holds for its
# own workload only: a disturbance of the machine lasts seconds, not a whole run.


@dataclass(frozen=True)
class Control:
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
        """How far the ratio is from 1, as a fraction, whichever entry was slower; rounded up to 0.1 %."""
        fraction = math.exp(abs(math.log(self.verdict.ratio))) - 1
        return math.ceil(fraction * 1000 - 1e-9) / 1000

    @property
    def between(self) -> float | None:
        """Standard deviation between the processes of visits, as a fraction; None if unknown.

        It is that of a visit's log ratio divided by sqrt(2), because both processes of the ratio contribute equally.
        """
        return None if math.isnan(self.verdict.spread) else self.verdict.spread / math.sqrt(2)


def controls(results: Mapping[str, Result], *, comparisons: int = 1, margin: float = MARGIN) -> list[Control]:
    """Each second entry against the first, for the measured `results` of one workload, by the name in the race.

    comparisons : the number of such controls in all: of 100 calm runs, about 95 have no control that fails.
    """
    found = []
    for name in filter(is_second_entry, results):
        first = entered_once(name)
        pair = [results[one] for one in (first, name) if one in results]
        verdict = verdicts_against(pair, first, comparisons=comparisons, margin=margin).get(name)
        if verdict is not None:
            found.append(Control(results[name].workload, first, verdict))
    return found
