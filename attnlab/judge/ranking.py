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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from attnlab.judge.pairing import MARGIN, Kind, Verdict
from attnlab.judge.replication import Speed, speeds
from attnlab.judge.verdicts import latencies, verdicts_against
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload

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
    has two by where its memory lies. The verdicts' ratios are this contender / best and this contender / baseline; None
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
    """Everyone measured on one workload, fastest median first. `disturbed` of all their `turns` do not count."""

    workload: Workload
    standings: tuple[Standing, ...]
    baseline: str | None
    turns: int
    disturbed: int

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
    order = sorted(times, key=lambda name: (name != best, medians[name]))
    turns = sum(len(one.samples) for one in times.values())
    kept = {name: len(set(one.by_round()) - one.disturbed_rounds) for name, one in times.items()}
    standings = tuple(
        Standing(
            contender=name,
            implementation=implementation_of(results[name]),
            seconds=medians[name],
            rounds=kept[name],
            speeds=speeds(times[name]),
            against_best=against_best.get(name),
            against_baseline=against_baseline.get(name),
        )
        for name in order
    )
    return Ranking(
        next(iter(results.values())).workload,
        standings,
        baseline if baseline in times else None,
        turns,
        turns - sum(kept.values()),
    )


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
    """The contender with the least median, or one that is decidedly faster pair by pair (the machine may drift).

    With the verdicts on all others against it.
    """
    order = sorted(medians, key=lambda name: medians[name])
    best = order[0]
    verdicts = decidable(results.values(), best, margin)
    for name in order:
        if name in verdicts and verdicts[name].kind is Kind.FASTER:
            best, verdicts = name, decidable(results.values(), name, margin)
    return best, verdicts
