"""Time and memory of contenders at a length that is not tried, from races at shorter lengths of the same workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.backend.contender import parse_all
from attnlab.judge.prediction import Prediction, predict
from attnlab.problem.declaring import UTMOST_PROCESSES, within
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.admission import USABLE, shortened
from attnlab.race.compare import PROCESSES, SECONDS
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.system import free_bytes
from attnlab.text import bytes_text

#: the shortest length, and how many must be measured
_FIRST_LENGTH, _LEAST = 64, 7
#: a length at which a call takes longer (seconds) is left out, and so are those after it
_LONGEST_CALL = 0.25


@dataclass(frozen=True)
class Predicted:
    """What a contender would take: `seconds` a call, and `peak` memory of it in bytes, output included, inputs not.

    Each is None where it was measured at too few lengths; `reason` then says why.
    """

    contender: str
    seconds: Prediction | None
    peak: Prediction | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs; what is not known is None."""
        figures = {"seconds": self.seconds, "peak_bytes": self.peak}
        told = {name: None if one is None else one.to_json() for name, one in figures.items()}
        return {"name": self.contender, **told, "reason": self.reason}

    def sentences(self, device: str) -> list[str]:
        """What is to be known beside the figures: why there are none, how far they reach, whether it fits."""
        if self.seconds is None or self.reason:
            return [f"{self.contender}: not predicted. {self.reason}."]
        one, said = self.seconds, []
        if one.far:
            said.append(
                f"{self.contender}: {one.length} is {one.length / one.longest:.3g} times the longest length that was "
                f"measured, {one.longest}: what changes on the way, as where a cache ends, is not in the intervals."
            )
        if device == "cpu" and self.peak is not None and self.peak.low > (free := free_bytes()) * USABLE:
            said.append(f"{self.contender} will not fit: {bytes_text(free)} are free here.")
        return said


def predicted(
    texts: Sequence[str],
    workload: Workload,
    *,
    folders: Sequence[str] = (),
    seconds: float | None = None,
    processes: int = PROCESSES,
    limits: Limits | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> list[Predicted]:
    """What each contender would take for `workload`, whose length is not tried: at most half of it is.

    seconds : for the rounds at one length, 1 for each contender by default. processes : of each contender, five at
    most. limits : all of it, instead. Raises ValueError as `compare` does, and for a length that is too short or does
    not stand alone.
    """
    within("seconds", SECONDS if seconds is None else seconds)
    within("processes", processes, UTMOST_PROCESSES)
    contenders = parse_all(texts)
    for one in contenders:
        one.require(folders)
    shorter = list(ladder(workload))
    count = min(PROCESSES, processes)
    limits = limits or Limits(
        workload_seconds=seconds or SECONDS * len(contenders),
        extra_seconds=2 * _LONGEST_CALL * len(contenders) * count,
        call_seconds=_LONGEST_CALL,
        processes=count,
        most_processes=count,
        far_behind=8.0,
    )
    found: list[Result] = []
    with Conductor(contenders, folders=folders, limits=limits, on_event=on_event) as conductor:
        for one in shorter:
            raced = conductor.race(one)
            found += raced
            if all(result.outcome is not Outcome.MEASURED for result in raced):
                break
    return [carried_on(one.name, found, workload) for one in contenders]


def carried_on(contender: str, results: Sequence[Result], workload: Workload) -> Predicted:
    """What `contender` would take for `workload` by its `results` on shorter ones."""
    mine = [one for one in results if one.contender == contender]
    timed = {_length(one.workload): one.latency.median for one in mine if one.latency is not None}
    peaks = {_length(one.workload): float(one.peak_bytes) for one in mine if one.peak_bytes}
    kept = {
        _length(one): one.pairs / (one.batch * one.heads)
        for one in (workload, *(one.workload for one in mine))
    }
    length = _length(workload)
    of_time = predict(timed, length, kept if workload.queries == workload.keys else None)
    reasons = [one.reason for one in mine if one.reason]
    few = f"{len(timed)} lengths were measured, which are too few"
    reason = "" if of_time else ": ".join(filter(None, (few, *reasons[:1])))
    return Predicted(contender, of_time, predict(peaks, length), reason)


def ladder(workload: Workload) -> Iterator[Workload]:
    """`workload` at lengths from 64 to half of its own, each about 1.4 times the one before.

    Where there are fewer queries than keys, or the other way round, the longer side is the length, and the other stays.
    Raises ValueError where there are too few of them, and for lengths of single batch elements, which say no law.
    """
    if workload.key_lengths:
        raise ValueError(
            "--predict carries one length on, and --key-lengths gives several: leave one of them out"
        )
    shorter, longer = sorted((workload.queries, workload.keys))
    first = _FIRST_LENGTH if shorter == longer else max(_FIRST_LENGTH, shorter)
    steps = (step for power in range(6, 24) for step in (2**power, 3 * 2 ** (power - 1)))
    lengths = [one for one in steps if first <= one <= longer // 2]
    if len(lengths) < _LEAST:
        raise ValueError(
            f"--predict needs {_LEAST} lengths from {first} to half of the one asked for, and {longer} leaves "
            f"{len(lengths)}: measure it, without --predict"
        )
    for one in lengths:
        sizes = {name: getattr(workload, name) for name in ("batch", "heads", "kv_heads")}
        yield shortened(workload, one).with_(**sizes)


def _length(one: Workload) -> int:
    return max(one.queries, one.keys)
