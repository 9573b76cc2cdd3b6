"""Where contenders change places as the length grows."""

from __future__ import annotations

from itertools import combinations

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.evidence import Evidence, Family
from attnlab.statistics.crossover import Crossover, crossovers
from attnlab.statistics.pairing import Verdict
from attnlab.statistics.ranking import decidable


def candidates(evidence: Evidence, family: Family) -> list[str]:
    """Contenders that are first somewhere, and the baseline; of two names for one kernel the first."""
    wanted = {one.contender for ranking in family.ranked.values() for one in ranking.first}
    chosen: list[str] = []
    for name in evidence.names:
        if name not in wanted | {evidence.baseline}:
            continue
        if not any(_one_kernel(family, name, other) for other in chosen):
            chosen.append(name)
    return chosen


def find(evidence: Evidence, family: Family) -> dict[int, list[Crossover]]:
    """All decided changes of places among the candidates, by head count.

    The error rate of each interval is shared among the pairs, or among the contenders where those are more.
    """
    pairs = list(combinations(candidates(evidence, family), 2))
    found: dict[int, list[Crossover]] = {}
    for count in family.heads:
        for one, other in pairs:
            verdicts = _verdicts(evidence, family, count, one, other, len(pairs))
            found.setdefault(count, []).extend(crossovers(one, other, verdicts))
    return {count: sorted(some, key=lambda c: c.length) for count, some in found.items()}


def crossings(evidence: Evidence, family: Family) -> list[str]:
    """A sentence for each pair that changes places, or one that says that none does."""
    ranked = sorted({length for _, length in family.ranked})
    if len(ranked) < 2:
        return []
    grouped: dict[tuple[str, str], list[str]] = {}
    for count, some in find(evidence, family).items():
        for one in some:
            grouped.setdefault((one.below, one.above), []).append(
                f"n ≈ {units.figures(one.length, 2)} [{units.figures(one.low, 2)}, {units.figures(one.high, 2)}]"
                f" at {wording.counted(count, 'head')}"
            )
    if grouped:
        return [
            f"**Crossover**: `{below}` is faster below, and `{above}` above, {wording.listed(places)}."
            for (below, above), places in grouped.items()
        ]
    names = candidates(evidence, family)
    if len(names) < 2:
        return []
    return [
        f"No crossover: between n = {ranked[0]} and {ranked[-1]} no two of "
        f"{wording.named(names)} decidedly change places at any head count."
    ]


def _one_kernel(family: Family, name: str, other: str) -> bool:
    """Whether the two ran one implementation wherever both were measured, which they were."""
    both = [
        (first.implementation, second.implementation)
        for ranking in family.ranked.values()
        if (first := ranking.of(name)) is not None and (second := ranking.of(other)) is not None
    ]
    return bool(both) and all(first == second for first, second in both)


def _verdicts(
    evidence: Evidence, family: Family, count: int, one: str, other: str, pairs: int
) -> dict[int, Verdict]:
    """`other` against `one`, by length."""
    verdicts = {}
    for (heads, n), cell in family.cells.items():
        if heads != count or one not in cell.measured or other not in cell.measured:
            continue
        comparisons = max(pairs, len(cell.measured) - 1)
        found = decidable(cell.measured.values(), one, None, cell.margin, comparisons)
        if other in found:
            verdicts[n] = found[other]
    return verdicts
