"""The instrument put to the test: what must come out is known, and what comes out is told.

Three questions, each on the machine as it is, beside a process that takes a core, and beside one that takes the
memory's bandwidth. Does a race tell the times that its contenders have alone (fidelity)? Is a contender ever called
faster or slower than itself (A/A)? Is a slow-down found that was put in on purpose?
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from attnlab.backends.contender import Contender, parse_all
from attnlab.backends.discovery import unasked
from attnlab.environment import environment
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.worker import Worker
from attnlab.stats.verdicts import ALPHA, Kind, Verdict, half_width, latencies, verdicts_against
from attnlab.subprocesses import Aside, Broken, Late
from attnlab.text import seconds_text
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

IDLE = "idle"
#: background load: what computes without a pause, and what copies 64 MiB to and fro
LOADS = ("cpu", "memory")
CONDITIONS = (IDLE, *LOADS)
#: how far a race may be from alone
FIDELITY = 0.05
#: slow-downs put in, per cent, and the least that must be found on an idle machine
SLOWED, MUST_FIND = (1.0, 2.0, 3.0, 5.0, 10.0), 5.0
#: contenders with the largest buffers that are entered twice
TWINS = 3
#: where the slow-downs are put in: a call of some milliseconds that needs no large buffer
_SLOWED_BACKEND = "torch_sdpa"
#: races and processes alone that take turns
_REPEATS = 5
#: background load that nobody ends is gone after this
_LOAD_SECONDS = 900.0
#: a process alone that has not answered after so many times its seconds, and a start, is ended
_PATIENCE, _START_SECONDS = 30.0, 120.0
#: large score matrices (16 MiB), whose place decides the speed of those that write them
WORKLOAD = Workload(batch=1, heads=16, queries=512, keys=512, head_dim=64)

Event = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One question with a known answer. `passed` is None where it could not be told, which is no failure here.

    `truth` is the ratio that is right, `ratio` what was found, [`low`, `high`] its interval, None where it has none.
    """

    question: str
    condition: str
    contender: str
    truth: float
    ratio: float | None
    low: float | None
    high: float | None
    said: str
    passed: bool | None


@dataclass(frozen=True)
class Report:
    """Every trial, where and when. `passed` where none failed and something was told."""

    trials: tuple[Trial, ...]
    seconds: float
    started: str
    environment: dict[str, Any]
    #: what other programs took of the machine while it should have been idle, where that was worth a word
    others: str | None = None

    @property
    def failures(self) -> tuple[Trial, ...]:
        """Trials whose answer was wrong."""
        return tuple(one for one in self.trials if one.passed is False)

    @property
    def passed(self) -> bool:
        """Whether the instrument can be believed here."""
        return not self.failures and any(one.passed for one in self.trials)

    def smallest_found(self, condition: str) -> float | None:
        """The least slow-down, per cent, from which on all were found under `condition`; None where none was."""
        found = {
            round((one.truth - 1) * 100, 6): one.said == Kind.SLOWER
            for one in self.trials
            if one.question == "slowed" and one.condition == condition
        }
        least = None
        for percent in sorted(found, reverse=True):
            if not found[percent]:
                break
            least = percent
        return least

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"passed": self.passed, **asdict(self)}


def selftest(
    *,
    names: Sequence[str] = (),
    conditions: Sequence[str] = CONDITIONS,
    seconds: float = 5.0,
    workload: Workload = WORKLOAD,
    on_event: Event = lambda text: None,
) -> Report:
    """Put the instrument to the test with the backends `names`, all that are here where empty.

    seconds : for the rounds of one race. Raises ValueError for an unknown condition or backend.
    """
    for condition in conditions:
        if condition not in CONDITIONS:
            raise ValueError(f"conditions are {', '.join(CONDITIONS)}, got {condition!r}")
    chosen = list(names) or unasked()
    for one in parse_all(chosen):
        one.require()
    bench = _Bench(
        workload,
        Limits(workload_seconds=seconds, most_processes=8, further_above=0.0, far_behind=8.0),
        on_event,
    )
    started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    where = environment()
    trials: list[Trial] = []
    for condition in conditions:
        with background_load(condition):
            results, found = bench.fidelity(chosen, condition, memory=condition == conditions[0])
            trials += found
            if condition == conditions[0]:
                largest = _largest(results)
            trials += [bench.twins(name, condition) for name in largest]
            there = {one.contender for one in results if one.latency is not None}
            slowed = _SLOWED_BACKEND if _SLOWED_BACKEND in there else next(iter(there), None)
            trials += [bench.slowed(slowed, percent, condition) for percent in SLOWED if slowed]
    return Report(tuple(trials), time.monotonic() - begun, started, where, bench.most_others())


@dataclass(frozen=True)
class _Bench:
    workload: Workload
    limits: Limits
    on_event: Event
    others: list[str] = field(default_factory=list)

    def most_others(self) -> str | None:
        """The most that other programs took during any race on the idle machine."""
        return max(self.others, key=lambda text: float(text.split()[0]), default=None)

    def race(
        self, texts: Sequence[str], condition: str, *, memory: bool = False, limits: Limits | None = None
    ) -> list[Result]:
        """One race in fresh processes."""

        def told(text: str) -> None:
            self.on_event(f"{condition}: {text}")

        with Conductor(
            parse_all(texts), limits=limits or self.limits, memory=memory, on_event=told
        ) as conductor:
            found = conductor.race(self.workload)
        facts = [one.latency.facts for one in found if one.latency is not None]
        if condition == IDLE:
            self.others.extend({one["others"] for one in facts if "others" in one})
        return found

    def fidelity(
        self, texts: Sequence[str], condition: str, *, memory: bool
    ) -> tuple[list[Result], list[Trial]]:
        """Each contender's time in races over its time alone, in bare processes, by turns: both meet the same machine.

        With the results of the first race.
        """
        brief = replace(
            self.limits, processes=2, most_processes=2, workload_seconds=self.limits.workload_seconds / 2
        )
        first: list[Result] = []
        together: dict[str, list[float]] = {}
        alone: dict[str, list[float]] = {}
        disturbed: dict[str, list[float]] = {}
        for number in range(_REPEATS if condition == IDLE else 1):
            results = self.race(texts, condition, memory=memory and not number, limits=brief)
            first = first or results
            for name, latency in latencies(results).items():
                self.on_event(f"{condition}: {name} alone")
                (contender,) = parse_all([name])
                alone.setdefault(name, []).append(seconds_alone(contender, self.workload))
                together.setdefault(name, []).append(latency.median)
                share = len(latency.disturbed_rounds) / len(latency.samples)
                disturbed.setdefault(name, []).append(share)
        return first, [
            _fidelity(name, condition, together[name], alone[name], max(disturbed[name])) for name in together
        ]

    def twins(self, name: str, condition: str) -> Trial:
        """A contender against itself: no difference may be claimed."""
        verdict = self._verdict(name, name, condition)
        claimed = verdict is not None and verdict.kind in (Kind.FASTER, Kind.SLOWER)
        told = verdict is not None and verdict.kind is Kind.EQUIVALENT
        return _trial("A/A", condition, name, 1.0, verdict, False if claimed else True if told else None)

    def slowed(self, name: str, percent: float, condition: str) -> Trial:
        """A slow-down that was put in: never the wrong sign, and found where it must be."""
        verdict = self._verdict(name, f"{name}[slowed={percent:g}]", condition)
        kind = verdict.kind if verdict is not None else None
        seen = verdict is not None and verdict.disturbed < verdict.rounds
        missed = kind is not Kind.SLOWER and seen and condition == IDLE and percent >= MUST_FIND
        passed = True if kind is Kind.SLOWER else False if kind is Kind.FASTER or missed else None
        return _trial("slowed", condition, f"{name}[slowed={percent:g}]", 1 + percent / 100, verdict, passed)

    def _verdict(self, baseline: str, other: str, condition: str) -> Verdict | None:
        return next(iter(verdicts_against(self.race([baseline, other], condition), baseline).values()), None)


def _fidelity(
    name: str, condition: str, together: Sequence[float], alone: Sequence[float], disturbed: float
) -> Trial:
    """The mean ratio over the repeats. Wrong where all of its interval is too far from 1, right where it is near."""
    logs = [math.log(one / other) for one, other in zip(together, alone, strict=True)]
    center = statistics.fmean(logs)
    reach = half_width(statistics.stdev(logs), len(logs), ALPHA) if len(logs) > 1 else math.inf
    near = math.log1p(FIDELITY)
    told = condition == IDLE and disturbed < 0.5
    passed = True if abs(center) <= near else False if abs(center) - reach > near else None
    low, high = (math.exp(center - reach), math.exp(center + reach)) if len(logs) > 1 else (None, None)
    times = (seconds_text(statistics.median(seconds)) for seconds in (together, alone))
    said = "{} in the race, {} alone".format(*times)
    return Trial(
        "fidelity", condition, name, 1.0, math.exp(center), low, high, said, passed if told else None
    )


def _trial(
    question: str, condition: str, contender: str, truth: float, found: Verdict | None, passed: bool | None
) -> Trial:
    if found is None:
        return Trial(question, condition, contender, truth, None, None, None, "not measured", None)
    low, high = (found.low, found.high) if found.low > 0 else (None, None)
    return Trial(question, condition, contender, truth, found.ratio, low, high, str(found.kind), passed)


def _largest(results: Sequence[Result]) -> list[str]:
    """The contenders that take most memory for a call: those whose speed hangs most on where it lies."""
    peaks = {one.contender: one.peak_bytes for one in results if one.peak_bytes is not None}
    return sorted(peaks, key=lambda name: -peaks[name])[:TWINS]


@contextlib.contextmanager
def background_load(kind: str, seconds: float = _LOAD_SECONDS) -> Iterator[None]:
    """Let a process of that kind of `LOADS` run as long as the block lasts, `seconds` at most; none where `IDLE`."""
    with contextlib.ExitStack() as stack:
        if kind != IDLE:
            stack.callback(Aside(_load, kind, seconds).end)
        yield


def _load(kind: str, seconds: float) -> None:
    one, two, end = bytearray(2**26), bytearray(2**26), time.monotonic() + seconds
    while time.monotonic() < end:
        if kind == "memory":
            one[:] = two
        else:
            sum(range(10_000))


def seconds_alone(
    contender: Contender, workload: Workload, *, seconds: float = 0.5, folders: Sequence[str] = ()
) -> float:
    """Median seconds a call in a fresh process that is never stopped: what a race must agree with.

    Over calls for so many `seconds` after a warm-up of a fifth, with the contender's settings and environment. Raises
    RuntimeError where it gives no figure.
    """
    environment = contender.environment(os.environ)
    asked = contender, workload, seconds, tuple(folders)
    alone = Aside(_alone, *asked, environment=environment, output=subprocess.DEVNULL)
    try:
        return alone.result(_START_SECONDS + _PATIENCE * seconds)
    except Late:
        raise RuntimeError(f"{contender.name} alone gave no figure in time") from None
    except Broken as fault:
        said = str(fault).strip().splitlines()[-1]
        raise RuntimeError(f"{contender.name} alone gave no figure: {said}") from None


def _alone(contender: Contender, workload: Workload, seconds: float, folders: Sequence[str]) -> float:
    worker = Worker()
    worker.load(contender, folders)
    worker.prepare(workload)
    call, library = worker.call, worker.library()
    assert call is not None
    iterations = max(1, round(0.005 / worker.calibrate(warmup_seconds=seconds / 5)["seconds"]))
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        samples.append(library.time_calls(call, iterations))
    return statistics.median(samples)
