"""What `attnlab.race.tune` found for a contender, and how it is said: sentences, lines for a shell, plain data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.race.compare import Comparison
from attnlab.race.tuning_candidates import Candidate
from attnlab.stats.verdicts import Kind, precision_apart, sentence
from attnlab.text import listed, percent
from attnlab.workload.result import Outcome
from attnlab.workload.workload import Workload


@dataclass(frozen=True)
class Tuning:
    """What was found for the contender `baseline`.

    `chosen` is the contender that was raced against it in the `confirmed` comparisons, itself where nobody else could
    be. `tried` are all candidates, by their notation. `dropped` tells why those left that may not be chosen, and
    `alone` which settings came first by far on a workload, though they were not chosen for all of them.
    """

    baseline: str
    chosen: str
    confirmed: tuple[Comparison, ...]
    tried: Mapping[str, Candidate]
    dropped: Mapping[str, str]
    alone: Mapping[Workload, str]
    seconds: float

    @property
    def holds(self) -> list[Workload]:
        """The workloads on which the choice is decidedly faster."""
        verdicts = ((one.workload, one.verdicts.get(self.chosen)) for one in self.confirmed)
        return [workload for workload, found in verdicts if found and found.kind is Kind.FASTER]

    def variables(self) -> tuple[dict[str, str], dict[str, str]]:
        """The environment variables that make the choice, and those that attnlab gives the baseline too."""
        one, other = (Contender.parse(name).environment({}) for name in (self.chosen, self.baseline))
        beside = {name: value for name, value in one.items() if other.get(name) == value}
        return {name: value for name, value in one.items() if name not in beside}, beside

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs. ``chosen`` is None where nothing helps; ``raced`` came nearest then."""
        export, beside = self.variables()
        return {
            "baseline": self.baseline,
            "chosen": self.chosen if self.holds else None,
            "raced": self.chosen,
            "holds": [one.to_dict() for one in self.holds],
            "export": export if self.holds else {},
            "beside": beside,
            "confirmed": [one.to_json() for one in self.confirmed],
            "tried": {name: one.why for name, one in self.tried.items()},
            "dropped": dict(self.dropped),
            "alone": {workload.label: text for workload, text in self.alone.items()},
            "seconds": self.seconds,
        }

    def sentences(self) -> list[str]:
        """What the confirming races say, workload by workload, what to make of it, and who was dropped."""
        said = [_verdict(one) for one in self.confirmed]
        if not self.holds:
            said.append(f"Nothing helps here: keep the defaults{self._nearest()}.")
        elif len(self.holds) < len(self.confirmed):
            labels = listed([one.label for one in self.holds])
            said.append(f"The gain holds on {labels}, and is not shown on the others.")
        for workload, text in self.alone.items():
            said.append(f"On {workload.label} alone {text} looked better: tune for that workload alone.")
        there = (one for name, one in self.tried.items() if name not in self.dropped)
        rest = [one.text for one in there if not one.part_of(self.chosen)]
        if rest:
            said.append(f"No gain, or none beside the rest: {'; '.join(rest)}.")
        return said + [f"Dropped: {name}: {reason}." for name, reason in self.dropped.items()]

    def _nearest(self) -> str:
        lows = [one.verdicts[self.chosen].low for one in self.confirmed if self.chosen in one.verdicts]
        if not lows:
            return ""
        most = (
            f"{percent(max(0.0, 1 / min(lows) - 1))} at most" if min(lows) else "nothing that could be told"
        )
        return f"; {self.chosen} came nearest, and gains {most} (ends of the intervals)"

    def lines(self) -> list[str]:
        """Lines for a shell that make the choice, those that attnlab gives all contenders last; none for no gain."""
        if not self.holds:
            return []
        export, beside = self.variables()
        own = [f"{name}={value}" for name, value in Contender.parse(self.chosen).settings]
        said = [f"# in attnlab: {shlex.quote(self.chosen)}", *_exports(export)]
        said += [f"# settings of the backend's own, not of the shell: {', '.join(own)}"] if own else []
        heap = "# what attnlab starts every contender with, the one without settings too:"
        return [*said, heap, *_exports(beside)] if beside else said


def _verdict(comparison: Comparison) -> str:
    base, chosen = comparison.results
    label, verdict = comparison.workload.label, comparison.verdicts.get(chosen.contender)
    if verdict is None:
        ended = chosen if base.outcome is Outcome.MEASURED else base
        return f"{label}: {ended.contender}: {ended.outcome}. {ended.reason}."
    apart = precision_apart(chosen, base)
    return f"{label}: {sentence(chosen.contender, base.contender, verdict, precision=apart)}"


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
