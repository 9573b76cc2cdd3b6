"""The same contenders at several values of one option: who is first at each, and how the lead goes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab.race.compare import Comparison
from attnlab.race.sentences import sentence
from attnlab.stats.analysis import analyse
from attnlab.stats.ranking import Lead, Sure, Winner
from attnlab.stats.verdicts import verdicts_against
from attnlab.text import interval_text, listed, ratio_text, seconds_text


@dataclass(frozen=True)
class Series:
    """Comparisons by the value of the option `name`, as typed. further : sentences about single contenders."""

    name: str
    comparisons: Mapping[str, Comparison]
    further: Sequence[str]

    @classmethod
    def of_races(cls, name: str, races: Mapping[str, Comparison]) -> Series:
        """From a race at each value."""
        further = [f"{name} {value}: {line}" for value, one in races.items() for line in one.sentences()]
        return cls(name, races, further)

    @classmethod
    def of_threads(cls, values: Sequence[str], contenders: Sequence[str], found: Comparison) -> Series:
        """From one race of all `contenders` with the first number of threads, then all with the next, ..."""
        parts, every, further = {}, iter(found.results), list[str]()
        for value in values:
            some = tuple(replace(next(every), contender=one) for one in contenders)
            against = verdicts_against(some, contenders[0])
            parts[value] = replace(found, baseline=contenders[0], results=some, verdicts=against)
        for at in range(len(contenders)):  # each against itself, with the first number of threads
            mine = found.results[at :: len(contenders)]
            base = mine[0].contender
            further += [sentence(name, base, one) for name, one in verdicts_against(mine, base).items()]
        return cls("threads", parts, [*further, *replace(found, verdicts={}).sentences()])

    @cached_property
    def won(self) -> dict[str, Winner]:
        """By value, who is first there."""
        return {
            value: analyse(one.results, baseline=one.baseline, workloads=[one.workload]).cells[0].won
            for value, one in self.comparisons.items()
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and by value each contender's median or outcome, who is first, and the lead over the next."""
        names = [one.contender for one in next(iter(self.comparisons.values())).results]
        rows = []
        for value, one in self.comparisons.items():
            won = self.won[value]
            times = [seconds_text(it.latency.median) if it.latency else str(it.outcome) for it in one.results]
            rows.append([value, *times, " ~ ".join(won.first), _lead(won.ahead) if won.ahead else ""])
        return [self.name, *names, "first", "times as fast as the next"], rows

    def sentences(self) -> list[str]:
        """Who is first where, how sure that is and how the lead goes; then the further ones."""
        firsts: dict[str, list[str]] = {}
        for value, won in self.won.items():
            firsts.setdefault(won.name if won.first else "nobody", []).append(value)
        said = "; ".join(f"{one} is first at {self.name} {listed(values)}" for one, values in firsts.items())
        unsure = [value for value, won in self.won.items() if won.sure not in (Sure.DECIDED, Sure.ALONE)]
        if len(firsts) == 1:
            count, leads = len(self.won), [won.ahead for won in self.won.values()]
            said = f"{next(iter(firsts))} is first at " + ("both" if count == 2 else f"all {count}")
            said += f"; the lead {_way(leads[0], leads[-1])}" if leads[0] and leads[-1] else ""
        said += f"; not decided at {listed(unsure)}" if unsure else ""
        return [*([f"{said}."] if any(won.ahead for won in self.won.values()) else []), *self.further]

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs."""
        told = [{"value": value, **one.to_json()} for value, one in self.comparisons.items()]
        return {"option": self.name, "sentences": self.sentences(), "comparisons": told}


def _lead(one: Lead) -> str:
    span = f" {interval_text(one.low, one.high)}" if one.low and one.high else ""
    return ratio_text(one.ratio) + span


def _way(one: Lead, last: Lead) -> str:
    """How a lead goes: it grows or falls only where the intervals lie apart."""
    grows = one.high is not None and last.low is not None and last.low > one.high
    falls = one.low is not None and last.high is not None and last.high < one.low
    if not (grows or falls):
        return f"does not clearly change ({ratio_text(one.ratio)} and {ratio_text(last.ratio)})"
    return f"{'grows' if grows else 'falls'} from {ratio_text(one.ratio)} to {ratio_text(last.ratio)}"
