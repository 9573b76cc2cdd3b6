"""The same contenders at several values of one option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab.race.compare import Comparison
from attnlab.stats.analysis import analyse
from attnlab.stats.ranking import Winner
from attnlab.stats.verdicts import verdicts_against


@dataclass(frozen=True)
class Series:
    """Comparisons by the value of the option `name`, as typed."""

    name: str
    comparisons: Mapping[str, Comparison]

    @classmethod
    def of_threads(cls, values: Sequence[str], contenders: Sequence[str], found: Comparison) -> Series:
        """From one race of all `contenders` with the first number of threads, then all with the next, ..."""
        parts, every = {}, iter(found.results)
        for value in values:
            some = tuple(replace(next(every), contender=one) for one in contenders)
            against = verdicts_against(some, contenders[0])
            parts[value] = replace(found, baseline=contenders[0], results=some, verdicts=against)
        return cls("threads", parts)

    @cached_property
    def won(self) -> dict[str, Winner]:
        """By value, which contender is first there."""
        return {
            value: analyse(one.results, baseline=one.baseline, workloads=[one.workload]).cells[0].won
            for value, one in self.comparisons.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs."""
        told = [{"value": value, **one.to_json()} for value, one in self.comparisons.items()]
        return {"option": self.name, "comparisons": told}
