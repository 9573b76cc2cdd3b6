"""One harness a session: contenders are started once, and every workload is raced once and kept.

And what is said of a race, to pytest-benchmark and at the end of the session.

Nothing is started before the first race. Where pytest-benchmark is disabled no process is started at all:
a backend is called once, here, and its answer goes through the gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import load
from attnlab.errors import Declined, Unavailable
from attnlab.gate import race_check
from attnlab.judge.analysis import BELIEVED
from attnlab.judge.pairing import Verdict
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.inputs import checked_problem
from attnlab.problem.result import Accuracy, Ceiling, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.pytest_plugin.options import Settings
from attnlab.race import admission
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.runs.execute import measure_ceiling
from attnlab.units import seconds_text


@dataclass(frozen=True)
class Answer:
    """What is known of a contender without a clock. `outcome` is None where it answered and was right."""

    outcome: Outcome | None
    reason: str = ""
    accuracy: Accuracy | None = None


class ReplayClock:
    """Samples that were taken elsewhere, told to pytest-benchmark through its own interface, bit for bit.

    pytest-benchmark reads its timer, calls the function, reads the timer again, and keeps the difference. This timer
    shows 0 until its `replay`, which stands for the function, sets it to the next sample, and 0 again once it was read.
    """

    #: how pytest-benchmark names this timer in its reports
    __name__ = "attnlab.interleaved"

    def __init__(self) -> None:
        self._samples: Iterator[float] = iter(())
        self._shown = 0.0

    def load(self, samples: Iterable[float]) -> None:
        """What is to be replayed: seconds, one sample a round."""
        self._samples = iter(tuple(samples))

    def __call__(self) -> float:
        shown, self._shown = self._shown, 0.0
        return shown

    def replay(self) -> None:
        """Let the next sample pass; without one left (a profiler calls once more), no time passes."""
        self._shown = next(self._samples, 0.0)


@dataclass(frozen=True)
class WorkloadResults:
    """All contenders' results on one workload, by name; `baseline` is what they are compared with."""

    results: Mapping[str, Result]
    baseline: str

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The verdicts against the baseline, by name; none where one of the two has no speed."""
        return verdicts_against(self.results.values(), self.baseline)

    def extra_info(self, name: str, share_of_ceiling: float | None) -> dict[str, Any]:
        """What stands beside the samples in every report, as plain JSON; None for what is not known."""
        result, verdict = self.results[name], self.verdicts.get(name)
        flagged = result.latency.disturbed_rounds if result.latency else frozenset[int]()
        figures: dict[str, float | None] = {
            "relative_error": None if result.accuracy is None else result.accuracy.relative_error,
            "ratio": verdict.ratio if verdict else 1.0 if name == self.baseline else None,
            "ratio_low": verdict.low or None if verdict else None,  # 0: it has no interval
            "ratio_high": verdict.high if verdict else None,
            "share_of_ceiling": share_of_ceiling,
        }
        return {
            "contender": name,
            "workload": result.workload.label,
            "outcome": str(result.outcome),
            "kernel": result.kernel,
            "computes_in": result.computes_in,
            "peak_bytes": result.peak_bytes,
            "baseline": self.baseline,
            "verdict": str(verdict.kind) if verdict else None,
            "disturbed_rounds": len(flagged),
            "doubt": _doubt(share_of_ceiling, result.workload.device),
            **{key: one if one is not None and math.isfinite(one) else None for key, one in figures.items()},
        }

    def line(self, name: str, share_of_ceiling: float | None) -> str:
        """The median, the ratio with its interval, and the verdict of a contender that was measured."""
        latency, verdict = self.results[name].latency, self.verdicts.get(name)
        assert latency is not None
        if verdict is None:
            said = "the baseline" if name == self.baseline else "not compared"
        else:
            span = f"[{verdict.low:.3g}, {verdict.high:.3g}]" if verdict.low else "[no interval]"
            interval = f"{verdict.ratio:7.3g} {span}"
            said = f"{interval}  {verdict.kind}, {verdict.rounds} rounds"
        doubt = _doubt(share_of_ceiling, self.results[name].workload.device)
        return f"{seconds_text(latency.median):>9}  {said}" + (f"  NOT BELIEVED: {doubt}" if doubt else "")


def _doubt(share: float | None, device: str) -> str | None:
    """Why a rate is not to be believed: it, or the ceiling, was measured while the machine was busy elsewhere."""
    if share is None or share <= BELIEVED[device]:
        return None
    return f"{share:.0%} of the best matrix-product rate seen here"


class Harness:
    """Races, single rounds and ceilings for one session. `races` holds what was raced, by workload."""

    def __init__(self, settings: Settings, limits: Limits, *, enabled: bool = True) -> None:
        self.settings = settings
        self.limits = limits
        self.enabled = enabled
        self.races: dict[Workload, WorkloadResults] = {}
        self._single_rounds: dict[tuple[Workload, bool], Mapping[str, Result]] = {}
        self._ceilings: dict[tuple[str, str], Ceiling | None] = {}
        self._conductor: Conductor | None = None

    def race(self, workload: Workload) -> WorkloadResults:
        """All contenders on `workload`, interleaved; measured once a session."""
        if workload not in self.races:
            results = self._run(workload, self.limits, memory=True)
            self.races[workload] = WorkloadResults(results, self.settings.baseline)
        return self.races[workload]

    def single_round(self, workload: Workload, *, memory: bool = False) -> Mapping[str, Result]:
        """All contenders' outcomes, errors and, with `memory`, peaks on `workload`: one round, no verdicts."""
        if workload in self.races:
            return self.races[workload].results
        for wanted in (memory, True):
            if (workload, wanted) in self._single_rounds:
                return self._single_rounds[workload, wanted]
        hasty = replace(
            self.limits, processes=1, most_processes=1, min_rounds=1, max_rounds=1, turn_seconds=1e-9
        )
        found = self._single_rounds[workload, memory] = self._run(workload, hasty, memory=memory)
        return found

    def answer(self, name: str, workload: Workload) -> Answer:
        """Whether the contender is right on `workload`: in its own process, or here if benchmarks are disabled."""
        if not self.enabled:
            return self._answer_here(name, workload)
        result = self.single_round(workload)[name]
        outcome = None if result.outcome is Outcome.MEASURED else result.outcome
        return Answer(outcome, result.reason or "", result.accuracy)

    def ceiling(self, workload: Workload, computes_in: str | None = None) -> Ceiling | None:
        """The best rates seen here for the workload's number format or a lower one; None where they are not wanted."""
        if not self.settings.ceilings:
            return None
        key = workload.device, computes_in or workload.dtype
        if key not in self._ceilings:
            self._ceilings[key] = measure_ceiling(*key)
        return self._ceilings[key]

    def share_of_ceiling(self, result: Result) -> float | None:
        """The FLOP rate of a measured result, as a share of the best matrix-product rate."""
        ceiling = self.ceiling(result.workload, result.computes_in)
        if ceiling is None or result.latency is None:
            return None
        return result.workload.flops / result.latency.median / ceiling.matmul_flops

    def close(self) -> None:
        """End all processes."""
        if self._conductor is not None:
            self._conductor.__exit__()
            self._conductor = None

    def _run(self, workload: Workload, limits: Limits, *, memory: bool) -> Mapping[str, Result]:
        if not self.enabled:
            raise RuntimeError("no race while benchmarks are disabled; ask for an answer")
        if self._conductor is None:
            settings = self.settings
            self._conductor = Conductor(
                settings.contenders, baseline=settings.baseline, folders=settings.folders
            )
        self._conductor.limits, self._conductor.memory = limits, memory
        results = self._conductor.race(workload)
        return {result.contender: result for result in results}

    def _answer_here(self, name: str, workload: Workload) -> Answer:
        """Call the backend once, in this process; of its settings only the backend's own apply here."""
        try:
            one = self.settings.contender(name)
            backend = load(one.backend, self.settings.folders, dict(one.settings))
            reason = backend.declines(workload)
        except (Unavailable, ValueError) as fault:
            return Answer(Outcome.UNAVAILABLE, str(fault))
        if reason:
            return Answer(Outcome.DECLINED, reason)
        try:
            seconds = _predicted_seconds(backend, workload, self.limits.call_seconds)
            if seconds > self.limits.call_seconds:
                reason = admission.too_long(seconds, self.limits.call_seconds)
                return Answer(Outcome.OVER_BUDGET, reason)
            rows = race_check.sampled_rows(workload)
            returned = backend.bind(workload, checked_problem(workload, rows))()
        except Declined as fault:
            return Answer(Outcome.DECLINED, str(fault))
        except Exception as fault:
            return Answer(Outcome.CRASHED, f"raised {type(fault).__name__}: {' '.join(str(fault).split())}")
        try:
            named = backend.named(workload, returned).items()
            cut = {name: workload.cut(name, one, rows) for name, one in named}
            judged = race_check.judge(workload, rows, cut, backend.computes_in)
        except ValueError as fault:
            return Answer(Outcome.WRONG, str(fault))
        return Answer(None if judged.passed else Outcome.WRONG, judged.reason or "", judged)


def _predicted_seconds(backend: Backend, workload: Workload, limit: float) -> float:
    """Seconds that a call of `workload` will take, from smaller sizes; 0 where it is small itself."""
    library = backend.open(workload.device)

    def seconds_of(smaller: Workload) -> float:
        call = backend.bind(smaller)
        # the first call of all carries the library's own start-up
        return min(library.time_calls(call, 1) for _ in range(2))

    return admission.predicted_seconds(workload, seconds_of, limit) or 0.0
