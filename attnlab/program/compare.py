"""Contenders raced on one workload, and what to say about it.

A difference of under 5 % is smaller than what two processes of one backend may differ by: it is claimed
only where it holds in three fresh sets of processes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.contract.result import Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.contender import parse_all
from attnlab.measuring.limits import Limits
from attnlab.statistics.pairing import Verdict
from attnlab.statistics.verdicts import SETS, agreed, sentence, small_claim, verdicts_against

#: for one set, unless another time is asked for
SECONDS = 5.0


@dataclass(frozen=True)
class Comparison:
    """One workload's race: a result a contender, and verdicts against the baseline where both were measured.

    `results` are of the first set of processes; `sets` tells how many each verdict rests on. `command` repeats it.
    """

    workload: Workload
    baseline: str
    results: tuple[Result, ...]
    verdicts: dict[str, Verdict]
    sets: int
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs; a figure that does not exist is None."""
        return {
            "workload": self.workload.to_dict(),
            "baseline": self.baseline,
            "sets": self.sets,
            "command": self.command,
            "contenders": [self._contender(result) for result in self.results],
        }

    def _contender(self, result: Result) -> dict[str, Any]:
        latency, verdict = result.latency, self.verdicts.get(result.contender)
        is_baseline = result.contender == self.baseline and latency is not None
        return {
            "name": result.contender,
            "outcome": str(result.outcome),
            "reason": result.reason,
            "seconds_median": latency.median if latency else None,
            "rounds": len(latency.samples) if latency else 0,
            "ratio": verdict.ratio if verdict else 1.0 if is_baseline else None,
            "ratio_low": _known(verdict.low) if verdict else 1.0 if is_baseline else None,
            "ratio_high": _known(verdict.high) if verdict else 1.0 if is_baseline else None,
            "verdict": str(verdict.kind) if verdict else "baseline" if is_baseline else None,
            "peak_bytes": result.peak_bytes,
            "relative_error": _known(result.accuracy.relative_error) if result.accuracy else None,
            "kernel": result.kernel,
        }

    def sentences(self) -> list[str]:
        """One sentence a contender: what came out, and what to do where nothing did."""
        said = []
        for result in self.results:
            if result.outcome is not Outcome.MEASURED:
                said.append(f"{result.contender}: {result.outcome}. {result.reason}.")
            elif result.contender in self.verdicts:
                said.append(sentence(result.contender, self.baseline, self.verdicts[result.contender]))
        if self.sets > 1:
            said.append(f"Verdicts had to hold in {self.sets} fresh sets of processes.")
        return said


def compare(
    texts: Sequence[str],
    workload: Workload,
    *,
    folders: Sequence[str] = (),
    limits: Limits | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Race the contenders on `workload`; the first is the baseline.

    Raises ValueError for fewer than two contenders, broken notation or an unknown backend.
    """
    from attnlab.contract.discovery import require

    contenders = parse_all(texts)
    if len(contenders) < 2:
        raise ValueError("compare needs at least two contenders; name the same one twice to test the machine")
    for one in contenders:
        require(one.backend, folders)
    baseline = contenders[0].name
    sets: list[tuple[Result, ...]] = []
    while len(sets) < SETS:
        with Conductor(
            contenders, folders=folders, limits=limits, memory=not sets, on_event=on_event
        ) as conductor:
            sets.append(tuple(conductor.race(workload)))
        first = verdicts_against(sets[0], baseline)
        if not any(small_claim(verdict) for verdict in first.values()):
            break
    judged = [verdicts_against(one, baseline) for one in sets]
    verdicts = {name: agreed([one.get(name) for one in judged]) for name in first}
    command = _command(texts, workload, folders, limits)
    return Comparison(workload, baseline, sets[0], verdicts, len(sets), command)


def _command(texts: Sequence[str], workload: Workload, folders: Sequence[str], limits: Limits | None) -> str:
    """What to type for the same again; of limits the command line has the time of a set alone."""
    further = [word for folder in folders for word in ("--implementations", str(folder))]
    if limits is not None and limits.workload_seconds != SECONDS:
        further += ["--seconds", f"{limits.workload_seconds:g}"]
    return " ".join(filter(None, (workload.command(*texts), shlex.join(further))))


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) and figure != 0 else None
