"""One laboratory a session: contenders are started once, and every workload is raced once and kept.

Nothing is started before the first race. Where pytest-benchmark is disabled no process is started at all:
a backend is called once, here, and its answer goes through the gate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnlab.accuracy import race_check
from attnlab.contract.backend import OUTPUT, Backend
from attnlab.contract.discovery import load
from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.result import Accuracy, Ceiling, Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.measuring import prediction
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.limits import Limits
from attnlab.program.execute import measure_ceiling
from attnlab.pytest_plugin.options import Settings
from attnlab.statistics import pairing

#: a rate further above the best that this machine reached is a failed measurement
BELIEVED = 1.05


@dataclass(frozen=True)
class Answer:
    """What is known of a contender without a clock. `outcome` is None where it answered and was right."""

    outcome: Outcome | None
    reason: str = ""
    accuracy: Accuracy | None = None


@dataclass(frozen=True)
class Race:
    """All contenders' results on one workload, by name, and their verdicts against the baseline."""

    results: Mapping[str, Result]
    baseline: str

    @property
    def disturbed(self) -> set[int]:
        """Rounds in which the machine itself was off its pace; verdicts leave them out."""
        latencies = [one.latency for one in self.results.values() if one.latency is not None]
        return pairing.disturbed_rounds(pairing.calibration_of(latencies))

    def verdict(self, name: str) -> pairing.Verdict | None:
        """The contender against the baseline; None for the baseline itself and where either has no speed."""
        base, other = self.results[self.baseline].latency, self.results[name].latency
        if name == self.baseline or base is None or other is None:
            return None
        raced = sum(one.latency is not None for one in self.results.values())
        try:
            return pairing.compare(base, other, disturbed=self.disturbed, comparisons=max(1, raced - 1))
        except ValueError:  # no undisturbed round in common
            return None


class Laboratory:
    """Races, glances and ceilings for one session. `races` holds what was raced, by workload."""

    def __init__(self, settings: Settings, limits: Limits, *, enabled: bool = True) -> None:
        self.settings = settings
        self.limits = limits
        self.enabled = enabled
        self.races: dict[Workload, Race] = {}
        self._glances: dict[tuple[Workload, bool], Mapping[str, Result]] = {}
        self._ceilings: dict[tuple[str, str], Ceiling | None] = {}
        self._conductor: Conductor | None = None

    def race(self, workload: Workload) -> Race:
        """All contenders on `workload`, interleaved; measured once a session."""
        if workload not in self.races:
            results = self._run(workload, self.limits, memory=True)
            self.races[workload] = Race(results, self.settings.baseline)
        return self.races[workload]

    def glance(self, workload: Workload, *, memory: bool = False) -> Mapping[str, Result]:
        """All contenders' outcomes, errors and, with `memory`, peaks on `workload`: one round, no verdicts."""
        if workload in self.races:
            return self.races[workload].results
        for wanted in (memory, True):
            if (workload, wanted) in self._glances:
                return self._glances[workload, wanted]
        hasty = replace(self.limits, min_rounds=1, max_rounds=1, turn_seconds=1e-9)
        found = self._glances[workload, memory] = self._run(workload, hasty, memory=memory)
        return found

    def answer(self, name: str, workload: Workload) -> Answer:
        """Whether the contender is right on `workload`: in its own process, or here if benchmarks are disabled."""
        if not self.enabled:
            return self._answer_here(name, workload)
        result = self.glance(workload)[name]
        outcome = None if result.outcome is Outcome.MEASURED else result.outcome
        return Answer(outcome, result.reason or "", result.accuracy)

    def ceiling(self, workload: Workload) -> Ceiling | None:
        """The best rates seen here for the workload's number format, or None where they are not wanted."""
        if not self.settings.ceilings:
            return None
        key = workload.device, workload.dtype
        if key not in self._ceilings:
            self._ceilings[key] = measure_ceiling(*key)
        return self._ceilings[key]

    def share_of_ceiling(self, result: Result) -> float | None:
        """The FLOP rate of a measured result, as a share of the best matrix-product rate."""
        ceiling = self.ceiling(result.workload)
        if ceiling is None or result.latency is None:
            return None
        return result.workload.flops / result.latency.median / ceiling.matmul_flops

    def close(self) -> None:
        """End all processes."""
        if self._conductor is not None:
            self._conductor.__exit__(None, None, None)
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
        """Call the backend once, in this process; its settings do not apply here."""
        try:
            backend = load(self.settings.contender(name).backend, self.settings.folders)
            reason = backend.declines(workload)
        except (Unavailable, ValueError) as fault:
            return Answer(Outcome.UNAVAILABLE, str(fault))
        if reason:
            return Answer(Outcome.DECLINED, reason)
        try:
            seconds = _predicted_seconds(backend, workload, self.limits.call_seconds)
            if seconds > self.limits.call_seconds:
                return Answer(
                    Outcome.OVER_BUDGET,
                    f"predicted {seconds:.3g} s a call from smaller sizes, "
                    f"over the limit of {self.limits.call_seconds:g} s",
                )
            output = backend.bind(workload)()
        except Declined as fault:
            return Answer(Outcome.DECLINED, str(fault))
        except Exception as fault:
            return Answer(Outcome.CRASHED, f"raised {type(fault).__name__}: {' '.join(str(fault).split())}")
        rows = race_check.sampled_rows(workload)
        try:
            judged = race_check.judge(workload, rows, backend.named(workload, output)[OUTPUT][:, :, rows])
        except ValueError as fault:
            return Answer(Outcome.WRONG, str(fault))
        return Answer(None if judged.passed else Outcome.WRONG, judged.reason or "", judged)


def _predicted_seconds(backend: Backend, workload: Workload, limit: float) -> float:
    """Seconds that a call of `workload` will take, from smaller sizes; 0 where it is small itself."""
    predicted = 0.0
    for rung in prediction.rungs(workload):
        call = backend.bind(rung)
        seconds = math.inf
        for _ in range(2):  # the first call of all carries the library's own start-up
            start = time.perf_counter()
            call()
            seconds = min(seconds, time.perf_counter() - start)
        predicted = seconds * workload.flops / rung.flops
        if predicted > limit and seconds > limit / 1000:
            break  # no longer overhead: what it grows to can be told
    return predicted
