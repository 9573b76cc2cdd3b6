"""The same contenders at several values of one thing: who is first at each, and how the lead goes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab.judge.analysis import analyse
from attnlab.judge.ranking import Lead, Sure, Winner
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Outcome
from attnlab.race.compare import Comparison
from attnlab.text import interval_text, listed, ratio_text, seconds_text


@dataclass(frozen=True)
class Series:
    """Comparisons by the value of `name`, as both were typed; `contenders` as they are called at every value."""

    name: str
    contenders: tuple[str, ...]
    comparisons: Mapping[str, Comparison]

    @classmethod
    def of_settings(
        cls, name: str, contenders: Sequence[str], values: Sequence[str], found: Comparison
    ) -> Series:
        """From one race of each contender with each value of a setting, all with the first value in front."""
        parts = {}
        for at, value in enumerate(values):
            some = found.results[at * len(contenders) : (at + 1) * len(contenders)]
            baseline = some[0].contender
            parts[value] = replace(
                found, baseline=baseline, results=some, verdicts=verdicts_against(some, baseline)
            )
        return cls(name, tuple(contenders), parts)

    @cached_property
    def won(self) -> dict[str, Winner]:
        """By value, who is first there, called as in `contenders`."""
        found = {}
        for value, one in self.comparisons.items():
            called = dict(zip((result.contender for result in one.results), self.contenders, strict=True))
            won = analyse(one.results, baseline=one.baseline).cells[0].won
            ahead = won.ahead and replace(won.ahead, over=called[won.ahead.over])
            found[value] = replace(won, first=tuple(called[each] for each in won.first), ahead=ahead)
        return found

    def rows(self) -> list[list[str]]:
        """By value each contender's median or outcome, who is first, and how many times as fast as the next."""
        return [
            [
                value,
                *(
                    seconds_text(each.latency.median) if each.latency else str(each.outcome)
                    for each in one.results
                ),
                " ~ ".join(self.won[value].first),
                "" if (ahead := self.won[value].ahead) is None else _lead_text(ahead),
            ]
            for value, one in self.comparisons.items()
        ]

    def sentence(self) -> str:
        """Who is first where, whether that is sure, and how the lead goes from the first value to the last."""
        firsts: dict[str, list[str]] = {}
        for value, won in self.won.items():
            firsts.setdefault(won.name if won.first else "nobody", []).append(value)
        unsure = [
            value for value, won in self.won.items() if won.sure in (Sure.CLOSE, Sure.TIE, Sure.NO_INTERVAL)
        ]
        places = [f"{name} is first at {self.name} {listed(values)}" for name, values in firsts.items()]
        if len(firsts) == 1:
            places = [
                f"{next(iter(firsts))} is first at "
                + ("both" if len(self.won) == 2 else f"all {len(self.won)}")
            ]
        said = "; ".join(places) + (f", not decidedly at {listed(unsure)}" if unsure else "")
        leads = [won.ahead for won in self.won.values()]
        if len(firsts) == 1 and leads[0] and leads[-1]:
            said += f"; the lead {_went(leads[0], leads[-1])}"
        return said + "."

    def left_out(self) -> list[str]:
        """One sentence for each contender and reason that it has no time for."""
        reasons: dict[tuple[str, str], list[str]] = {}
        for value, one in self.comparisons.items():
            for name, result in zip(self.contenders, one.results, strict=True):
                if result.outcome is not Outcome.MEASURED:
                    reasons.setdefault((name, f"{result.outcome}. {result.reason}"), []).append(value)
        return [f"{name} at {self.name} {listed(at)}: {why}." for (name, why), at in reasons.items()]

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs."""
        told = [{"value": value, **one.to_json()} for value, one in self.comparisons.items()]
        return {"field": self.name, "sentence": self.sentence(), "comparisons": told}


def _lead_text(one: Lead) -> str:
    span = "" if one.low is None or one.high is None else f" {interval_text(one.low, one.high)}"
    return ratio_text(one.ratio) + span


def _went(one: Lead, last: Lead) -> str:
    """How a lead goes: it grows or falls only where the intervals lie apart."""
    way = "does not clearly change, from"
    if one.high is not None and last.low is not None and last.low > one.high:
        way = "grows from"
    if one.low is not None and last.high is not None and last.high < one.low:
        way = "falls from"
    return f"{way} {one.ratio:.3g} to {last.ratio:.3g}"
