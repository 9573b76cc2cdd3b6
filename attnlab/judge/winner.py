"""Who wins one workload, by how much, and how sure that is: the one value that report, page and terminal show.

`attnlab.judge.ranking.rank` compares everybody with the fastest; `winner` says what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.ranking import Ranking, Standing


class Sure(StrEnum):
    """How sure the first place is.

    DECIDED: every other implementation that was compared is slower with its whole interval. TIE: some are not.
    NO_INTERVAL: too few undisturbed processes to compare anybody. ALONE: nothing else was
    measured. NOBODY: nothing was.
    """

    DECIDED = "decided"
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
        sure = Sure.TIE if len(shown) > 1 else Sure.DECIDED
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
