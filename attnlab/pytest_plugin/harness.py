"""One harness a session: contenders are started once, and every workload is raced once and kept.

Nothing is started before the first race. Where pytest-benchmark is disabled no process is started at all: a backend is
called once, here, and its answer goes through the gate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnlab.backends.discovery import load
from attnlab.correctness import race_check
from attnlab.errors import Declined, Unavailable
from attnlab.race import admission
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.plausibility import measure_ceiling
from attnlab.remembered import Remembered
from attnlab.stats.verdicts import Verdict, verdicts_against
from attnlab.text import counted, seconds_text
from attnlab.workload.drawing import checked_problem
from attnlab.workload.result import Accuracy, Ceiling, Outcome, Result
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    from attnlab.pytest_plugin.plugin import Settings


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
            "no_interval": verdict.no_interval if verdict else None,
            "verdict": str(verdict.kind) if verdict else None,
            "disturbed_rounds": len(result.latency.disturbed_rounds) if result.latency else 0,
            **{key: one if one is not None and math.isfinite(one) else None for key, one in figures.items()},
        }

    def line(self, name: str) -> str:
        """The median, the ratio with its interval, and the verdict of a contender that was measured.

        And how many of its samples others disturbed: those are in pytest-benchmark's table all the same.
        """
        latency, verdict = self.results[name].latency, self.verdicts.get(name)
        assert latency is not None
        if verdict is None:
            said = "the baseline" if name == self.baseline else "not compared"
        else:
            span = "[no interval]" if verdict.no_interval else f"[{verdict.low:.3g}, {verdict.high:.3g}]"
            said = f"{verdict.ratio:7.3g} {span}  {verdict.kind}, {verdict.rounds} rounds"
        if disturbed := len(latency.disturbed_rounds):
            said += f"; disturbed: {disturbed} of {counted(len(latency.samples), 'sample')}"
        return f"{seconds_text(latency.median):>9}  {said}"


class Harness:
    """Races, single rounds and ceilings for one session. `races` holds what was raced, by workload."""

    def __init__(self, settings: Settings, limits: Limits, *, enabled: bool = True) -> None:
        self.settings, self.limits, self.enabled = settings, limits, enabled
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

    def answer(self, name: str, workload: Workload) -> Accuracy | Result:
        """How exact it is, or a result that says why not: in its own process, or here if benchmarks are disabled."""
        if self.enabled:
            result = self.single_round(workload)[name]
            return result.accuracy if result.outcome is Outcome.MEASURED and result.accuracy else result
        try:
            return self._answer_here(name, workload)
        except (Unavailable, Declined) as fault:
            outcome = Outcome.DECLINED if isinstance(fault, Declined) else Outcome.UNAVAILABLE
            return Result(name, workload, outcome, str(fault))
        except Exception as fault:
            return Result(name, workload, Outcome.CRASHED, f"raised {type(fault).__name__}: {fault}")

    def _answer_here(self, name: str, workload: Workload) -> Accuracy | Result:
        """Call the backend once, in this process; of its settings only the backend's own apply here."""
        one = self.settings.contenders[name]
        try:
            backend = load(one.backend, self.settings.folders, dict(one.settings))
            reason = backend.declines(workload)
        except ValueError as fault:
            raise Unavailable(str(fault)) from None
        if reason:
            raise Declined(reason)
        library, limit = backend.open(workload.device), self.limits.call_seconds

        def seconds_of(smaller: Workload) -> float:
            call = backend.bind(smaller)
            # the first call of all carries the library's own start-up
            return min(library.time_calls(call, 1) for _ in range(2))

        seconds = admission.predicted_seconds(workload, seconds_of, limit) or 0.0
        if seconds > limit:
            said = admission.too_long(seconds, limit, self.limits.allowing(seconds, 1))
            return Result(name, workload, Outcome.OVER_BUDGET, said)
        rows = race_check.sampled_rows(workload)
        returned = backend.bind(workload, checked_problem(workload, rows))()
        try:
            named = backend.named(workload, returned).items()
            cut = {name: workload.cut(name, one, rows) for name, one in named}
            judged = race_check.judge(workload, rows, cut, backend.computes_in)
        except ValueError as fault:
            return Result(name, workload, Outcome.WRONG, str(fault))
        return judged if judged.passed else Result(name, workload, Outcome.WRONG, judged.reason, judged)

    def share_of_ceiling(self, result: Result) -> float | None:
        """The FLOP rate of a measured result, as a share of the best matrix-product rate in its number format here.

        None where ceilings are not wanted, or cannot be measured.
        """
        if not self.settings.ceilings or result.latency is None:
            return None
        key = result.workload.device, result.computes_in or result.workload.dtype
        if key not in self._ceilings:
            self._ceilings[key] = measure_ceiling(*key, Remembered(afresh=True))
        ceiling = self._ceilings[key]
        if ceiling is None:
            return None
        return result.workload.flops / result.latency.median / ceiling.matmul_flops

    def close(self) -> None:
        """End all processes."""
        if self._conductor is not None:
            self._conductor.__exit__()
            self._conductor = None

    def _run(self, workload: Workload, limits: Limits, *, memory: bool) -> Mapping[str, Result]:
        if self._conductor is None:
            settings = self.settings
            self._conductor = Conductor(
                tuple(settings.contenders.values()), baseline=settings.baseline, folders=settings.folders
            )
        self._conductor.limits, self._conductor.memory = limits, memory
        return {result.contender: result for result in self._conductor.race(workload)}
