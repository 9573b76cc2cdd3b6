"""A backend raced against itself under other settings: which of them help here, by how much, and for which workloads.

1. *Screening.* The contender and every candidate (`attnlab.race.tuning_candidates`) race on each workload, in
   `PROCESSES` processes each and in little time. A candidate's gain is the mean of its log ratios over the workloads;
   who gave a wrong answer, no answer, or one in a lower precision than is allowed leaves with the reason.
2. *Combining.* Of each kind the best candidate that gained `WORTH` or more goes on, the best `MOST` of these. All their
   combinations race the contender in fresh processes; the best is chosen, or the one of fewest settings of those that
   are as good to within `WORTH`.
3. *Confirming.* The choice races the contender once more on each workload, in fresh processes and as long as
   `attnlab compare` does. Only these verdicts are told.

The figures of 1 and 2 are those of whoever came out best, and too good for that (the winner's curse). The third race
knows nothing of them: each of its intervals misses its true ratio in 5 % of cases at most, however many were tried, so
that settings that do nothing are called faster on a workload in 2.5 % at most. Where none gained in 1, the best of them
is confirmed all the same: its intervals tell what gain would have been seen. A gain below `WORTH` may be missed, and so
may one that only settings of two kinds together have.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from attnlab.backends.contender import Contender, parse_all
from attnlab.errors import Unavailable
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.tuning import Tuning
from attnlab.race.tuning_candidates import Candidate, candidates
from attnlab.stats.verdicts import verdicts_against
from attnlab.workload.declaring import within
from attnlab.workload.result import Outcome, Result
from attnlab.workload.vocabulary import DTYPES, lower
from attnlab.workload.workload import Workload

#: where nothing is said: short calls, whose threads hardly pay, and long ones, whose scores fill no cache
WORKLOADS = tuple(Workload(heads=8, queries=one, keys=one) for one in (128, 512, 2048))
#: for the rounds of a confirming race; the races before it have this part of it for each contender
SECONDS, _SEARCH_SHARE = 4.0, 0.125
#: processes of each contender in the races that search
PROCESSES = 3
#: the least gain that is looked for, and the most settings of different kinds that are combined
WORTH, MOST = math.log1p(0.02), 3
#: who gains so much on one workload in the screening, and was not chosen for all, is worth a search of its own there
APART = math.log1p(0.1)


def tune(
    text: str,
    workloads: Sequence[Workload] = WORKLOADS,
    *,
    folders: Sequence[str] = (),
    seconds: float = SECONDS,
    precision: str | None = None,
    among: Sequence[Candidate] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Find settings under which the contender `text` is faster on `workloads`, all taken together.

    seconds : for the rounds of each confirming race. precision : the lowest number format that it may compute in, by
    default that of the inputs. among : what is tried, by default all that is known to matter here. Raises ValueError
    for broken notation, an unknown backend, no workload or a number of no use, Unavailable where the contender itself
    cannot be measured on any of them.
    """
    started = time.monotonic()
    within("seconds", seconds)
    within("workloads", len(workloads))
    base = Contender.parse(text)
    base.require(folders)
    if precision not in (None, *DTYPES):
        raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {precision!r}")
    if among is None:
        with Conductor([base], folders=folders, limits=Limits(processes=1), on_event=on_event) as conductor:
            facts = conductor.facts(workloads[0].device)
            if base.name in conductor.sets.absent:
                raise Unavailable(f"{base.name}: {conductor.sets.absent[base.name][1]}")
            library = conductor.sets.running(0)[base.name].library
        among = candidates(base, library, facts.get(base.name, {}), folders)
    tried = {_with(base.name, [one]): one for one in among}
    search = _Search(base.name, workloads, folders, seconds * _SEARCH_SHARE, precision, on_event)
    choice = search.best(tried) if tried else base.name
    confirmed = tuple(
        compare(base.name, choice, workload=one, folders=folders, seconds=seconds, on_event=on_event)
        for one in (workloads if choice != base.name else ())
    )
    firsts = {workload: tried[name] for workload, name in search.firsts.items() if len(workloads) > 1}
    alone = {workload: one.text for workload, one in firsts.items() if not one.part_of(choice)}
    return Tuning(base.name, choice, confirmed, tried, search.dropped, alone, time.monotonic() - started)


@dataclass(frozen=True)
class _Search:
    """Rounds 1 and 2, each with `seconds` for every contender of a race.

    `dropped` takes those that leave, with the reason, and `firsts` who was first in the screening of a workload, where
    that was by `APART` or more over the contender itself.
    """

    baseline: str
    workloads: Sequence[Workload]
    folders: Sequence[str]
    seconds: float
    precision: str | None
    on_event: Callable[[str], None]
    dropped: dict[str, str] = field(default_factory=dict)
    firsts: dict[Workload, str] = field(default_factory=dict)

    def best(self, tried: Mapping[str, Candidate]) -> str:
        """The contender that is to be confirmed; the baseline where nobody else could be measured."""
        gains = self._gains(list(tried), self.firsts)
        helped: dict[str, Candidate] = {}
        for name in sorted(gains, key=gains.__getitem__):
            if gains[name] < -WORTH:
                helped.setdefault(tried[name].kind, tried[name])
        parts = list(helped.values())[:MOST]
        if len(parts) < 2:
            return min(gains, key=gains.__getitem__, default=self.baseline)
        sets = [chosen for size in range(1, len(parts) + 1) for chosen in combinations(parts, size)]
        names = {_with(self.baseline, chosen): len(chosen) for chosen in sets}
        gains = self._gains(list(names), {})
        near = [name for name in gains if gains[name] <= min(gains.values()) + WORTH]
        return min(near, key=lambda name: (names[name], gains[name]), default=self.baseline)

    def _gains(self, names: Sequence[str], firsts: dict[Workload, str]) -> dict[str, float]:
        """By contender, the mean of ln(its time / the baseline's) over the workloads; of those that were not dropped.

        `firsts` takes who was first by far on a workload. Raises Unavailable where the baseline was measured on none.
        """
        logs: dict[str, list[float]] = defaultdict(list)
        failed, everyone = "", parse_all([self.baseline, *names])
        seconds = self.seconds * len(everyone)
        limits = Limits(
            workload_seconds=seconds, processes=PROCESSES, most_processes=PROCESSES, further_above=0.0
        )
        asked: dict[str, Any] = {"limits": limits, "folders": self.folders, "on_event": self.on_event}
        with Conductor(everyone, memory=False, instruments=(), **asked) as conductor:
            for workload in self.workloads:
                base, *others = conductor.race(workload)
                if base.outcome is not Outcome.MEASURED:
                    failed = failed or f"{base.contender}: {base.outcome}. {base.reason}"
                    continue
                reasons = {one.contender: self._objection(one, base) for one in others}
                self.dropped.update({name: reason for name, reason in reasons.items() if reason})
                verdicts = verdicts_against([base, *others], self.baseline)
                now = {name: math.log(one.ratio) for name, one in verdicts.items() if not reasons[name]}
                for name, gain in now.items():
                    logs[name].append(gain)
                if now and min(now.values()) < -APART:
                    firsts[workload] = min(now, key=now.__getitem__)
        if not logs and failed:
            raise Unavailable(failed)
        # who was compared on fewer workloads has another mean
        most = max(map(len, logs.values()), default=0)
        return {
            name: statistics.fmean(found)
            for name, found in logs.items()
            if len(found) == most and name not in self.dropped
        }

    def _objection(self, one: Result, base: Result) -> str | None:
        """Why it cannot be chosen, or None."""
        if one.outcome is not Outcome.MEASURED:
            return f"{one.outcome}. {(one.reason or '').rstrip('.')}"
        allowed = self.precision or base.computes_in or base.workload.dtype
        if one.computes_in and lower(allowed, one.computes_in):
            return f"it computes in {one.computes_in}, which --precision {one.computes_in} allows"
        return None


def _with(text: str, parts: Sequence[Candidate]) -> str:
    """The notation of the contender with further settings."""
    backend, _, its_own = text.partition("[")
    settings = [one for one in (its_own.removesuffix("]"), *(part.text for part in parts)) if one]
    return f"{backend}[{','.join(settings)}]"
