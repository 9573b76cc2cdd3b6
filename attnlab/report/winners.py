"""Who wins where, and whom to choose for all of it: the verdict as values, before any word of it is written.

Each place is `attnlab.judge.winner.Winner`; the report's table, its figures, its tables of data and its sentences
are all made of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnlab.judge.ranking import Standing
from attnlab.judge.winner import Sure, Winner
from attnlab.report.analysis import Analysis, At, Cell, Group

#: a memory that is more than this many times another's counts as larger, where time does not decide
MORE_MEMORY = 1.5


@dataclass(frozen=True)
class Place:
    """One workload with a winner: its group, where it stands in it, and who is first."""

    group: Group
    at: At
    cell: Cell
    won: Winner

    def standing(self, name: str) -> Standing | None:
        """The contender's place among those that compute in the inputs' precision."""
        return self.cell.ranking.of(name) if self.cell.ranking is not None else None

    def shares_first(self, name: str) -> bool:
        """Whether `name`, or another name of its kernel, is first here or tied for it."""
        return name in self.first

    @cached_property
    def first(self) -> frozenset[str]:
        """Everybody who is first here or tied for it, under every name of a kernel."""
        standings = self.cell.ranking.standings if self.cell.ranking is not None else ()
        kernels = {one.implementation for one in standings if one.contender in self.won.first}
        return frozenset(one.contender for one in standings if one.implementation in kernels)

    def behind(self, name: str) -> float:
        """How many times as long as the fastest `name` takes: 1 where it shares the first place, inf without a time."""
        mine = self.standing(name)
        if mine is None:
            return float("inf")
        if self.shares_first(name):
            return 1.0
        return mine.against_best.ratio if mine.against_best else mine.seconds / self.won.seconds


@dataclass(frozen=True)
class Choice:
    """The contender to run where one is to do for all `places`.

    It is decidedly the fastest at `won` and tied for it at `tied`; at `behind` another is faster, and at `absent` it
    has no time.
    """

    name: str
    places: tuple[Place, ...]

    @property
    def name_in_code(self) -> str:
        """As it stands in a sentence."""
        return f"`{self.name}`"

    @cached_property
    def won(self) -> list[Place]:
        """Where it is first, and nobody is tied with it."""
        return [one for one in self._first() if one.won.sure is Sure.DECIDED]

    @cached_property
    def tied(self) -> list[Place]:
        """Where it shares the first place."""
        return [one for one in self._first() if one.won.sure is Sure.TIE]

    @cached_property
    def behind(self) -> list[Place]:
        """Where another one is decidedly faster."""
        return [
            one
            for one in self.places
            if 1 < one.behind(self.name) < float("inf") and one.won.sure is not Sure.NO_INTERVAL
        ]

    @cached_property
    def absent(self) -> list[Place]:
        """Where others have a time and it has none."""
        return [one for one in self.places if one.behind(self.name) == float("inf")]

    def _first(self) -> Iterable[Place]:
        return (one for one in self.places if one.shares_first(self.name))


def places(analysis: Analysis, group: Group) -> list[Place]:
    """The workloads of `group` at which anybody was measured, by heads, then length."""
    cells = ((at, group.cells[at]) for at in group.ranked)
    return [Place(group, at, cell, analysis.won[cell.workload]) for at, cell in cells]


def every_place(analysis: Analysis) -> list[Place]:
    """Those of all groups."""
    return [one for group in analysis.groups for one in places(analysis, group)]


def choose(analysis: Analysis, found: Sequence[Place]) -> Choice | None:
    """Whom to run at all of `found`: who is first or tied for it at most of them; None where there are none.

    Of several such the one that needs the least memory at the largest workload, and of those that need about as much
    the first of the plan.
    """
    counts = Counter(name for one in found for name in one.first)
    best = [name for name in analysis.names if name in counts and counts[name] == max(counts.values())]
    if not best:
        return None
    peaks = peaks_of(found, best)
    if len(peaks) == len(best):
        best = [name for name in best if peaks[name] <= MORE_MEMORY * min(peaks.values())]
    return Choice(best[0], tuple(found))


def peaks_of(found: Collection[Place], names: Collection[str] | None = None) -> dict[str, int]:
    """Peak bytes by contender at `largest`, of `names` alone where they are given."""
    place = largest(found, names)
    return _peaks(place, names) if place is not None else {}


def largest(found: Collection[Place], names: Collection[str] | None = None) -> Place | None:
    """The place with the largest score matrix at which most of `names` (by default of all) have a peak of memory."""
    known = [(one, count) for one in found if (count := len(_peaks(one, names)))]
    wanted = max((count for _, count in known), default=0)
    full = [one for one, count in known if names is None or count == wanted]
    return max(full, key=lambda one: one.cell.workload.score_bytes, default=None)


def _peaks(one: Place, names: Collection[str] | None) -> dict[str, int]:
    return {
        name: peak
        for name, result in one.cell.measured.items()
        if (names is None or name in names) and (peak := result.peak_bytes) is not None
    }
