"""Who is first at one workload, who shares the place, and by how much the others trail.

The contender with the least median is the reference and every other is compared with it. Those that are
not decidedly slower share the first place: "first" is a set, and a set of one is a win.

Choosing the reference from the same data costs no confidence. Let every interval against the *truly*
fastest cover, which fails with probability 5 % at most when the error is shared among k - 1 comparisons.
Then the truly fastest is never decidedly slower than the reference, so it is in the first set; and where
that set has one member, it is the truly fastest, whose intervals cover (Gupta 1965, "On some multiple
decision rules"; Hsu 1984, "Constrained simultaneous confidence intervals for multiple comparisons with
the best").
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from attnlab.contract.result import Measurement, Result
from attnlab.contract.workload import Workload
from attnlab.statistics.pairing import MARGIN, Kind, Verdict, calibration_of, compare, disturbed_rounds

_ENTRY = re.compile(r"#(\d+)$")


def entered_once(name: str) -> str:
    """The contender behind an entry: ``torch_eager#2`` is ``torch_eager``."""
    return _ENTRY.sub("", name)


def is_second_entry(name: str) -> bool:
    """Whether `name` is a further entry of a contender that is there already."""
    return _ENTRY.search(name) is not None


def implementation_of(result: Result) -> str:
    """What really ran, told apart from other implementations.

    Two backends of one library that report the same fused attention kernel are one implementation under two
    names; sharing a matrix product or a BLAS library does not make them one. Settings count: the same kernel
    with other threads is another choice to a user.
    """
    settings = entered_once(result.contender).partition("[")[2]
    fused = result.kernel is not None and "attention" in result.kernel
    ran = f"{result.backend.partition('_')[0]}:{result.kernel}" if fused else result.backend
    return f"{ran}[{settings}" if settings else ran


@dataclass(frozen=True)
class Standing:
    """One contender's place at one workload.

    `seconds` is the median call over the undisturbed rounds, of which there were `rounds`. The verdicts'
    ratios are this contender / best and this contender / baseline; None for the best, or the baseline,
    itself, and where too few rounds are shared for any interval.
    """

    contender: str
    implementation: str
    seconds: float
    rounds: int
    against_best: Verdict | None
    against_baseline: Verdict | None


@dataclass(frozen=True)
class Ranking:
    """Everyone measured on one workload, fastest median first. `disturbed` rounds were left out of `rounds`."""

    workload: Workload
    standings: tuple[Standing, ...]
    baseline: str | None
    rounds: int
    disturbed: int

    @property
    def best(self) -> Standing:
        """The reference of all comparisons."""
        return self.standings[0]

    @property
    def first(self) -> tuple[Standing, ...]:
        """The best, and those that are not decidedly slower; contenders without an interval are not here."""
        return tuple(
            one
            for one in self.standings
            if one is self.best or (one.against_best is not None and one.against_best.kind is not Kind.SLOWER)
        )

    @property
    def decided(self) -> bool:
        """Whether there was anything to compare the best with, and rounds enough to do it."""
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
        return next((one for one in self.standings if one.contender == contender), None)


def rank(
    results: Mapping[str, Result],
    *,
    baseline: str,
    margin: float = MARGIN,
    disturbed: Collection[int] | None = None,
) -> Ranking | None:
    """The ranking of `results` (measured, all of one workload, by contender), or None if there are none.

    `margin` is the relative difference that counts as none. `disturbed` rounds are found from the
    calibration loop unless given. Second entries of a contender must have been left out.
    """
    times = {name: one.latency for name, one in results.items() if one.latency is not None}
    if not times:
        return None
    if disturbed is None:
        disturbed = disturbed_rounds(calibration_of(times.values()))
    left_out = set(disturbed)
    medians = {name: undisturbed_median(one, left_out) for name, one in times.items()}
    best = _reference(times, medians, left_out, margin)
    order = sorted(times, key=lambda name: (name != best, medians[name]))
    others = len(times) - 1
    rounds = set().union(*(one.by_round() for one in times.values()))
    standings = tuple(
        Standing(
            contender=name,
            implementation=implementation_of(results[name]),
            seconds=medians[name],
            rounds=len(set(times[name].by_round()) - left_out),
            against_best=paired(times, best, name, left_out, others, margin),
            against_baseline=paired(times, baseline, name, left_out, others, margin),
        )
        for name in order
    )
    return Ranking(
        next(iter(results.values())).workload,
        standings,
        baseline if baseline in times else None,
        len(rounds - left_out),
        len(rounds & left_out),
    )


def undisturbed_median(times: Measurement, disturbed: Collection[int]) -> float:
    """Median over the undisturbed rounds; over all of them where every round was disturbed."""
    kept = [sample for index, sample in times.by_round().items() if index not in disturbed]
    return statistics.median(kept) if kept else times.median


def paired(
    times: Mapping[str, Measurement],
    baseline: str,
    contender: str,
    disturbed: Collection[int],
    comparisons: int,
    margin: float,
) -> Verdict | None:
    """`contender` against `baseline`, or None where they are one, one is missing, or no interval exists."""
    if baseline == contender or baseline not in times or contender not in times:
        return None
    try:
        verdict = compare(
            times[baseline],
            times[contender],
            disturbed=disturbed,
            comparisons=max(1, comparisons),
            margin=margin,
        )
    except ValueError:  # no undisturbed round in common
        return None
    return verdict if verdict.low > 0 else None


def _reference(
    times: Mapping[str, Measurement], medians: Mapping[str, float], disturbed: Collection[int], margin: float
) -> str:
    """The least median, unless someone is decidedly faster than it pair by pair (drift can do that)."""
    best = min(medians, key=lambda name: medians[name])
    for name in sorted(medians, key=lambda name: medians[name]):
        verdict = paired(times, best, name, disturbed, len(times) - 1, margin)
        if verdict is not None and verdict.kind is Kind.FASTER:
            best = name
    return best
