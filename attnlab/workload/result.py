"""What a contender did on a workload (`Result`): an outcome, and measurements only if it was measured.

Raw samples are kept; summaries are computed from them. A wrong or skipped contender has no speed: such a result cannot
be made. A visit gives one result for each contender, and `merged` combines those of several visits. Everything is plain
data and survives JSON unchanged. `Ceiling` and `Invariance` are other findings of a run.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import chain
from typing import Annotated, Any

from msgspec import Meta

from attnlab.text import decode, finite, number_text, one_line
from attnlab.workload.workload import Workload


class Outcome(StrEnum):
    """The outcome of a contender on a workload."""

    MEASURED = "measured"
    DECLINED = "declined"  # it does not do this workload
    UNAVAILABLE = "unavailable"  # a library, a device or a file is missing
    WRONG = "wrong"  # a wrong answer
    OVER_BUDGET = "over_budget"  # predicted to take too much memory or time, and not tried
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"


#: a value that can have been measured, in its base unit; NaN cannot
_Sample = Annotated[float, Meta(ge=0, le=1e18)]


@dataclass(frozen=True)
class Measurement:
    """Every raw sample of one quantity, in its base unit.

    columns : values that were recorded with each sample (round, iterations, run delay, ...), each as long as `samples`;
    a latency must have the number of the round. facts : what is true of all samples (method, cache state).
    """

    quantity: str
    unit: str
    samples: tuple[_Sample, ...]
    columns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"a measurement of {self.quantity} needs at least one sample")
        for name, column in self.columns.items():
            if len(column) != len(self.samples):
                raise ValueError(f"column {name} has {len(column)} entries for {len(self.samples)} samples")
        if self.quantity == "latency":
            numbers = *self.columns.get("round", (math.nan,)), *self.columns.get("visit", ())
            if not (all(map(math.isfinite, numbers)) and min(self.samples) > 0):
                raise ValueError("samples of a latency must be above 0 s, each with the number of its round")

    def __repr__(self) -> str:
        return f"{self.quantity} {number_text(self.median)} {self.unit}, median of {len(self.samples)}"

    @cached_property
    def median(self) -> float:
        """Median of the undisturbed samples, in the base unit; of all samples if every one was disturbed."""
        out = self.disturbed_rounds
        kept = [one for number, one in self.by_round.items() if number not in out] if out else self.samples
        return statistics.median(kept or self.samples)

    @cached_property
    def by_round(self) -> Mapping[int, float]:
        """The sample of each round."""
        return dict(zip(map(int, self.columns["round"]), self.samples, strict=True))

    @cached_property
    def visits(self) -> Mapping[int, int]:
        """The number of the visit of each round, 0 if it was not recorded."""
        numbers = self.columns.get("visit") or (0.0,) * len(self.samples)
        return dict(zip(map(int, self.columns["round"]), map(int, numbers), strict=True))

    @cached_property
    def disturbed_rounds(self) -> frozenset[int]:
        """The rounds in which this contender's turn was disturbed."""
        rounds, flags = self.columns.get("round", ()), self.columns.get("disturbed", ())
        return frozenset(int(one) for one, flag in zip(rounds, flags, strict=False) if flag)


@dataclass(frozen=True)
class Accuracy:
    """The error of one array of numbers against float64 on the inputs as cast, and the largest error allowed.

    The check before a race and `check` make it.

    relative_error : ||answer - truth|| / ||truth|| in the Frobenius norm, over the query rows that were checked.
    budget : the largest relative error that passes. passed, reason : whether it is right, and why not.
    kind : the tightest class of rounding that covers the error ("full precision inside", "weights rounded", "scores
    rounded"; None: outside all). ratio : the error divided by the budget of that class.
    max_ulp : the largest error in units in the last place. bias : the z of the error along the answer.
    of : the name of this answer, the worst one if there are several ("output", "query gradient", ...).
    """

    relative_error: float
    budget: float
    passed: bool
    reason: str | None = None
    kind: str | None = None
    ratio: float = math.nan
    max_ulp: float = math.nan
    bias: float = math.nan
    of: str = "output"

    def precision(self) -> dict[str, Any]:
        """The same as plain data, under the keys of ``attnlab check --json``."""
        first = {"class": self.kind, "relative_error": self.relative_error, "budget_ratio": self.ratio}
        return {**first, "max_ulp": self.max_ulp, "bias": self.bias, "of": self.of}


@dataclass(frozen=True)
class Result:
    """What one contender did on one workload, in one visit or in several that were merged.

    contender : the name under which it raced (``torch_sdpa#2`` for a second entry). library : the library of its
    backend. kernel : what really ran, as the library reports. asked_kernel : the operator that the backend forces, if
    it does.
    computes_in : the number format in which it computes, if that is lower than the format of its inputs; the budget
    depends on it. tail : the last lines that its process printed, if it ended. race_seconds : the time of its visits,
    the same for all contenders. left : why it was not measured in one visit, if it was measured in others.

    Raises ValueError for measurements without the outcome `measured`, for a wrong answer with this outcome, and for any
    other outcome without a reason. A visit that measures no times has no latency; a `merged` result has one if it is
    `measured`.
    """

    contender: str
    workload: Workload
    outcome: Outcome
    reason: str | None = None
    accuracy: Accuracy | None = None
    kernel: str | None = None
    measurements: tuple[Measurement, ...] = ()
    library: str | None = None
    asked_kernel: str | None = None
    computes_in: str | None = None
    tail: str | None = None
    race_seconds: float | None = None
    left: str | None = None

    def __post_init__(self) -> None:
        for name in ("contender", "reason", "kernel"):  # these texts come from backends, libraries and files
            if getattr(self, name) is not None:
                object.__setattr__(self, name, one_line(getattr(self, name)))
        measured = self.outcome is Outcome.MEASURED
        if measured and self.accuracy is not None and not self.accuracy.passed:
            raise ValueError(f"{self.contender}: a wrong result has no speed")
        if self.measurements and not measured:
            raise ValueError(f"{self.contender}: outcome {self.outcome} allows no measurements")
        if not (self.reason or measured):
            raise ValueError(f"{self.contender}: outcome {self.outcome} needs a reason")

    def __repr__(self) -> str:
        said = f": {self.reason}" if self.latency is None else f", {self.latency!r}"
        return f"Result({self.contender} at {self.workload.label}: {self.outcome}{said})"

    @property
    def backend(self) -> str:
        """The name of the backend: the contender's name without settings and entry number."""
        return self.contender.partition("[")[0].partition("#")[0]

    def measurement(self, quantity: str) -> Measurement | None:
        """The measurement of `quantity`, or None."""
        return next((one for one in self.measurements if one.quantity == quantity), None)

    @cached_property
    def latency(self) -> Measurement | None:
        """Seconds per call, one sample for each round."""
        return self.measurement("latency")

    @property
    def uncounted(self) -> bool:
        """Whether every turn of its latency was disturbed. No statement may use such a latency."""
        return self.latency is not None and len(self.latency.disturbed_rounds) == len(self.latency.samples)

    @property
    def setup_seconds(self) -> float | None:
        """Seconds from the inputs until calls have their final speed: the median over its processes."""
        return found.median if (found := self.measurement("setup")) else None

    @property
    def peak_bytes(self) -> int | None:
        """The smallest memory peak over the measured calls, including the output, without the inputs."""
        return int(min(found.samples)) if (found := self.measurement("peak_memory")) else None

    def to_json(self) -> str:
        """One line of JSON; numbers that are not finite become strings."""
        return json.dumps(finite(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Result:
        """The inverse of `to_json`. Unknown fields, of a later version, are skipped, but not those of the workload.

        Raises ValueError, naming the key, for a line that is no result and for figures that cannot have been measured,
        and RecursionError for one that is nested too deeply.
        """
        data = json.loads(line)
        if not isinstance(data, dict) or not isinstance(data.get("workload"), dict):
            raise ValueError("not a result: it has no workload; measure again with this version")
        told = {**data, "workload": _workload(json.dumps(data["workload"]))}
        return decode(told, cls, "the result", strict=False, known_only=False)


@lru_cache(maxsize=64)
def _workload(text: str) -> Workload:
    return Workload.from_dict(json.loads(text))


def merged(results: Iterable[Result]) -> list[Result]:
    """One result for each contender and workload, with the samples of all visits, in the order of the first visits.

    A contender that was wrong in any visit is wrong. Otherwise it is measured if any visit timed it, and `reason` says
    what happened in the other visits. If no visit timed it, it has its last outcome that is not `measured`; without
    one, it is left out.
    """
    together: dict[tuple[str, Workload], list[Result]] = {}
    for one in results:
        together.setdefault((one.contender, one.workload), []).append(one)
    found = [_merged(visits) if len(visits) > 1 else visits[0] for visits in together.values()]
    return [one for one in found if one.latency or one.outcome is not Outcome.MEASURED]


def _merged(visits: Sequence[Result]) -> Result:
    wrong = next((one for one in visits if one.outcome is Outcome.WRONG), None)
    measured = [one for one in visits if one.latency]
    failed = [one for one in visits if one.outcome is not Outcome.MEASURED]
    if wrong or not measured:
        return wrong or (failed or visits)[-1]
    quantities: dict[str, list[Measurement]] = {}
    for one in (each for visit in visits for each in visit.measurements):
        quantities.setdefault(one.quantity, []).append(one)
    return replace(
        measured[0],
        reason="; ".join(dict.fromkeys(one.reason for one in visits if one.reason)) or None,
        accuracy=next((one.accuracy for one in measured if one.accuracy), None),
        kernel=next((one.kernel for one in measured if one.kernel), None),
        measurements=tuple(map(_joined, quantities.values())),
        race_seconds=sum(one.race_seconds or 0.0 for one in visits) or None,
        left=next((one.reason for one in failed), None),
    )


def _joined(parts: Sequence[Measurement]) -> Measurement:
    """One measurement of all samples, with the columns that all parts have."""
    first, *others = parts
    names = [name for name in first.columns if all(name in one.columns for one in others)]
    return replace(
        first,
        samples=tuple(chain.from_iterable(one.samples for one in parts)),
        columns={name: tuple(chain.from_iterable(one.columns[name] for one in parts)) for name in names},
        facts={name: one for other in reversed(parts) for name, one in other.facts.items()},
    )


#: tests of the bits of an answer: are they the same again, for a part of the inputs alone, for gradients again, with
#: other threads?
GRADIENTS_AGAIN = "gradients again"
SAME_BITS = (
    "again", "batch alone", "head alone", "a chunk of queries", "one query alone", GRADIENTS_AGAIN, "other threads",
)  # fmt: skip


@dataclass(frozen=True)
class Invariance:
    """Whether `contender` gave the same bits in `dtype`: the result of each test of `SAME_BITS` that was made.

    reason : why some tests were not made.
    """

    contender: str
    dtype: str
    same: dict[str, bool] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Ceiling:
    """The best rates seen for one number format on one device, and the libraries that reached them.

    matmul_flops : FLOP/s. copy_bytes : bytes/s, read plus written. remembered : when they were measured (day and time
    in UTC), if that was before the run.
    """

    device: str
    dtype: str
    matmul_flops: Annotated[float, Meta(gt=0)]
    matmul_library: str
    copy_bytes: Annotated[float, Meta(gt=0)]
    copy_library: str
    remembered: str | None = None
