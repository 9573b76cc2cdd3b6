"""Which two contenders change places with the length, and where."""

from __future__ import annotations

from itertools import combinations

from attnlab.judge.crossover import Crossover, crossovers
from attnlab.judge.pairing import Verdict
from attnlab.judge.ranking import decidable
from attnlab.report.analysis import Analysis, Group


def candidates(analysis: Analysis, group: Group) -> list[str]:
    """Contenders that are first somewhere, and the baseline; of two names for one kernel the first."""
    wanted = {one.contender for ranking in group.ranked.values() for one in ranking.first}
    chosen: list[str] = []
    for name in analysis.names:
        if name not in wanted | {analysis.baseline}:
            continue
        if not any(_one_kernel(group, name, other) for other in chosen):
            chosen.append(name)
    return chosen


def find_crossovers(analysis: Analysis, group: Group) -> dict[int, list[Crossover]]:
    """All decided changes of places among the candidates, by head count.

    The error rate of each interval is shared among the pairs, or among the contenders where those are more.
    """
    pairs = list(combinations(candidates(analysis, group), 2))
    found: dict[int, list[Crossover]] = {}
    for count in group.heads:
        for one, other in pairs:
            verdicts = _verdicts(analysis, group, count, one, other, len(pairs))
            found.setdefault(count, []).extend(crossovers(one, other, verdicts))
    return {count: sorted(some, key=lambda c: c.length) for count, some in found.items()}


def _one_kernel(group: Group, name: str, other: str) -> bool:
    """Whether the two ran one implementation wherever both were measured, which they were."""
    both = [
        (first.implementation, second.implementation)
        for ranking in group.ranked.values()
        if (first := ranking.of(name)) is not None and (second := ranking.of(other)) is not None
    ]
    return bool(both) and all(first == second for first, second in both)


def _verdicts(
    analysis: Analysis, group: Group, count: int, one: str, other: str, pairs: int
) -> dict[int, Verdict]:
    """`other` against `one`, by length."""
    verdicts = {}
    for n in group.grid[count]:
        cell = group.cells[count, n]
        if one not in cell.measured or other not in cell.measured:
            continue
        both = (cell.measured[one], cell.measured[other])
        found = decidable(both, one, cell.margin, max(pairs, len(cell.measured) - 1))
        if other in found:
            verdicts[n] = found[other]
    return verdicts
