"""The results of a run, judged: which measurements to believe, which contender is first, what changes with length.

Report, page and terminal show these values; no other code turns results into winners. Workloads that differ only in
heads and length form a group. The name of a group says how it differs from the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from attnlab.stats.intervals import ALPHA, MARGIN, Kind, Verdict, quantile
from attnlab.stats.ranking import (
    Control,
    Ranking,
    Standing,
    Winner,
    controls,
    decidable,
    entered_once,
    is_second_entry,
    rank,
    winner,
)
from attnlab.workload.number_formats import lower
from attnlab.workload.result import Ceiling, Outcome, Result
from attnlab.workload.workload import Workload, in_label, spoken

#: fields that follow from others if they are not given
_FOLLOWING = ("kv_heads", "queries", "value_dim", "scale")
_FIELDS = {one.name: one for one in fields(Workload)}
#: all fields but heads and length; those that a reader looks for first come first
_CONDITIONS = tuple(
    one
    for one in dict.fromkeys(("dtype", "device", "batch", "head_dim", *_FIELDS))
    if one not in ("heads", "keys")
)


def grouped(asked: Mapping[Workload, str]) -> tuple[str, list[tuple[str, list[Workload]]]]:
    """What all workloads have in common, and the groups: workloads in a group differ in heads and length only.

    asked : by workload, the parts of presets that asked for it, separated by commas, or "". The name of a group says
    how it differs from the others, beginning with those parts; it is empty if there is one group only. If the batch
    follows from the length (the number of tokens is fixed), workloads with different batches are in one group.
    """
    tokens = _tokens(asked)
    found: dict[tuple[Any, ...], list[Workload]] = {}
    for workload, origin in asked.items():
        found.setdefault(_conditions(workload, tokens.get(origin)), []).append(workload)
    first = next(iter(found), ())
    differing = {at for key in found for at, value in enumerate(key) if value != first[at]}
    shared = [_text(at, value) for at, value in enumerate(first) if at not in differing]
    groups = []
    for key, members in found.items():
        said = [_text(at, key[at]) for at in sorted(differing)]
        if not any(said):
            said = [f"{_CONDITIONS[at]}={spoken(key[at])}" for at in sorted(differing)]
        paths = dict.fromkeys(path for one in members for path in asked[one].split(", ") if path)
        name = " ".join(filter(None, said))
        origin = ", ".join(paths) if len(found) > 1 else ""
        groups.append((": ".join(filter(None, (origin, name))), members))
    return " ".join(filter(None, shared)), groups


def _tokens(asked: Mapping[Workload, str]) -> dict[str, int]:
    """By origin, the number of tokens of each of its workloads, if the batches differ but this number does not."""
    found = {}
    for origin in set(asked.values()) - {""}:
        mine = [workload for workload, path in asked.items() if path == origin]
        sizes = {workload.batch * workload.keys for workload in mine}
        if len(sizes) == 1 and len({workload.batch for workload in mine}) > 1:
            found[origin] = sizes.pop()
    return found


def _conditions(workload: Workload, tokens: int | None) -> tuple[Any, ...]:
    """The value of each of `_CONDITIONS`; None if it follows from others."""
    usual = workload.heads, workload.keys, workload.head_dim, 1 / math.sqrt(workload.head_dim)
    derived = dict(zip(_FOLLOWING, usual, strict=True))
    if workload.d_model is not None:
        derived["head_dim"] = workload.d_model // workload.heads
    told = {name: getattr(workload, name) for name in _CONDITIONS}
    if tokens is not None:
        told["batch"] = f"{tokens}/n"
    return tuple(None if derived.get(name) == value else value for name, value in told.items())


def _text(at: int, value: Any) -> str:
    """A condition as in a workload's label; empty at its default."""
    name = _CONDITIONS[at]
    if value is None:
        return ""
    if name in _FOLLOWING:
        return f"{name}={spoken(value)}"
    return in_label(_FIELDS[name], value)


# -- a time beside what this machine can do ----------------------------------------------------------
#
# The roofline model of Williams, Waterman and Patterson 2009. The ceiling of arithmetic is measured: the best matrix
# product of the installed libraries. A correct kernel may be faster than that (OpenVINO and ONNX Runtime reached three
# times the rate of NumPy's product on an AMD EPYC). So a measurement counts as failed only if no choice of instructions
# by a library can explain its rate.

#: a measurement above this fraction of the copy bandwidth is not believed
_BELIEVED_COPY = 1.05
#: a measurement above this fraction of the matrix-product rate is not believed. On a CPU, all installed libraries may
#: use 128-bit vectors and no fused multiply-add, which costs a factor of 8 (512 bits, and two operations in one). On
#: CUDA all use the vendor's product
_BELIEVED = {"cpu": 8.0, "cuda": 1.05}
#: bytes of both buffers of the copy benchmark on the CPU; a warm call on fewer may stay in the caches, really faster
#: than memory
_BEYOND_CACHES = 2**28


@dataclass(frozen=True)
class Rate:
    """`flops` is the rate reached, in FLOP/s; `compute` and `bandwidth` are fractions of the two ceilings.

    `beyond` names the ceiling that was exceeded by more than is possible; then the time is no measurement. Else it is
    None.
    """

    flops: float
    compute: float
    bandwidth: float
    beyond: str | None = None


def rate(result: Result, ceilings: Sequence[Ceiling]) -> Rate | None:
    """The fractions of the ceilings of its device and number format that a result reached; None if unknown.

    The copy bandwidth limits a call only if its bytes must come from memory: with cold caches, or if its inputs and
    output are too large for any cache.
    """
    workload, latency = result.workload, result.latency
    computes = (workload.device, result.computes_in or workload.dtype)
    ceiling = next((one for one in ceilings if (one.device, one.dtype) == computes), None)
    if ceiling is None or latency is None:
        return None
    flops, least_bytes = workload.flops / latency.median, workload.least_bytes
    compute, bandwidth = flops / ceiling.matmul_flops, least_bytes / latency.median / ceiling.copy_bytes
    from_memory = latency.facts.get("cache") == "cold" or least_bytes > _BEYOND_CACHES
    beyond = None
    if compute > _BELIEVED[ceiling.device]:
        beyond = "matrix-multiply rate"
    elif from_memory and bandwidth > _BELIEVED_COPY:
        beyond = "copy bandwidth"
    return Rate(flops, compute, bandwidth, beyond)


# -- workloads and groups of them --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """One workload: its results (each contender once), those that were measured and are believed, and their order.

    `group` is the name of its group. `faults` names, for each measurement that is not believed, the ceiling that it
    exceeds. `rates` holds the fractions of the machine's ceilings. `margin` is the relative difference that counts as
    none here. `ranking` holds those that compute in the inputs' precision, or, if there are none, in the highest
    precision that any has; `everyone` holds all that were measured and are believed. `won` is the first place.
    """

    workload: Workload
    group: str
    answers: Mapping[str, Result]
    measured: Mapping[str, Result]
    faults: Mapping[str, str]
    rates: Mapping[str, Rate]
    margin: float
    ranking: Ranking | None
    everyone: Ranking | None
    won: Winner

    def standing(self, name: str) -> Standing | None:
        """The contender's place, in the ranking or else among everyone; None if it has no speed."""
        peer = self.ranking.of(name) if self.ranking else None
        return peer or (self.everyone.of(name) if self.everyone else None)

    @cached_property
    def first(self) -> frozenset[str]:
        """Every contender that is first here or tied for it, with all names of the same kernels."""
        if self.ranking is None:
            return frozenset()
        return self.ranking.names_of(one for one in self.ranking.standings if one.contender in self.won.first)


@dataclass(frozen=True, eq=False)
class Group:
    """Workloads that differ in heads and length only: `cells` by (heads, number of keys); see `grouped`."""

    name: str
    cells: Mapping[tuple[int, int], Cell]


@dataclass(frozen=True, eq=False)
class Analysis:
    """The results of a run, judged. `names` are its contenders, each once, in the plan's order.

    `margin` is the relative difference that counts as none; a cell has a larger margin if its A/A control failed.
    `shared` says what all workloads have in common, besides heads and length.
    """

    names: tuple[str, ...]
    baseline: str
    margin: float
    controls: tuple[Control, ...]
    groups: tuple[Group, ...]
    shared: str

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, group by group."""
        return [cell for group in self.groups for _, cell in sorted(group.cells.items())]


def analyse(
    results: Iterable[Result],
    *,
    baseline: str,
    workloads: Sequence[Workload] = (),
    origins: Sequence[str] = (),
    contenders: Iterable[str] = (),
    ceilings: Sequence[Ceiling] = (),
    margin: float = MARGIN,
) -> Analysis:
    """Judge `results`: believe or refuse each measurement, evaluate the A/A control, rank every workload.

    Results without a turn that counts are left out.

    workloads, contenders : those asked for, in the order in which they are shown; others in `results` come after them
    origins : for each of `workloads`, the parts of presets that asked for it; none for a run without presets
    """
    asked = dict(zip(workloads, origins, strict=True)) if origins else {}
    answers: dict[Workload, dict[str, Result]] = {workload: {} for workload in asked or workloads}
    raced = dict.fromkeys(contenders)
    for result in (one for one in results if not one.uncounted):
        answers.setdefault(result.workload, {})[result.contender] = result
        raced[result.contender] = None
    names = tuple(dict.fromkeys(map(entered_once, raced)))
    baseline = entered_once(baseline)
    tested: dict[Workload, list[Control]] = {}
    for workload, some in answers.items():
        timed = {name: one for name, one in some.items() if one.outcome is Outcome.MEASURED}
        tested[workload] = controls(timed, comparisons=len(answers), margin=margin)
    shared, groups = grouped({workload: asked.get(workload, "") for workload in answers})

    def cell(workload: Workload, group: str) -> Cell:
        once = {name: one for name, one in answers[workload].items() if not is_second_entry(name)}
        margin_here = max([margin, *(one.deviation for one in tested[workload] if one.differs)])
        rates = {name: found for name, one in once.items() if (found := rate(one, ceilings))}
        faults = {name: one.beyond for name, one in rates.items() if one.beyond}
        measured = {name: one for name, one in once.items() if one.latency is not None and name not in faults}
        peers = _peers(measured)
        ranking = rank(peers, baseline=baseline, margin=margin_here)
        everyone = ranking
        if len(peers) < len(measured):
            everyone = rank(measured, baseline=baseline, margin=margin_here)
        won = winner(ranking, names)
        return Cell(workload, group, once, measured, faults, rates, margin_here, ranking, everyone, won)

    made = tuple(
        Group(name, {(one.heads, one.keys): cell(one, name) for one in members}) for name, members in groups
    )
    every = tuple(one for some in tested.values() for one in some)
    return Analysis(names, baseline, margin, every, made, shared)


def _peers(measured: Mapping[str, Result]) -> dict[str, Result]:
    """The results in the highest precision that any has: only results of the same precision are ranked together."""
    formats = {name: one.computes_in or one.workload.dtype for name, one in measured.items()}
    return {
        name: one
        for name, one in measured.items()
        if not any(lower(other, formats[name]) for other in formats.values())
    }


# -- how a contender's time grows with length --------------------------------------------------------
#
# The slope of ln(time) against ln(length), with its interval. A slope of 2 is quadratic growth. If a constant cost or a
# cache bends the line, the interval is wide, because it depends on how far the measured lengths lie from the line.

#: two lengths determine the line exactly, and leave nothing to estimate its error from
LEAST_LENGTHS = 3


@dataclass(frozen=True)
class Slope:
    """The slope from length `first` to `last`, with its 95 % interval."""

    slope: float
    low: float
    high: float
    first: int
    last: int


def slope_of(seconds: Mapping[int, float]) -> Slope | None:
    """Ordinary least squares of ln(seconds) on ln(length); None for fewer than three lengths."""
    import numpy as np

    lengths = sorted(seconds)
    if len(lengths) < LEAST_LENGTHS:
        return None
    x, y = np.log(lengths), np.log([seconds[n] for n in lengths])
    line, covariance = np.polyfit(x, y, 1, cov=True)
    slope, error = float(line[0]), math.sqrt(covariance[0, 0])
    half = quantile(len(lengths) - 2, ALPHA) * error
    return Slope(slope, slope - half, slope + half, lengths[0], lengths[-1])


# -- where two contenders change places --------------------------------------------------------------
#
# A crossover is the length at which two curves meet. There is none if neither contender overtakes the other. ln(ratio)
# is interpolated linearly in ln(n). This is done for the ratio and both ends of its interval, from a length where one
# contender is clearly faster to a length where the other is. Linear interpolation places a crossover between two
# lengths only roughly. So the interval is widened on both sides by `_DOUBT` of the distance between the lengths beside
# it.

#: largest error of a crossover by linear interpolation, as a fraction of ln(n) between two lengths: for lengths that
#: double, and for overheads and costs per pair that differ by up to a factor of 50
_DOUBT = 0.1


@dataclass(frozen=True)
class Crossover:
    """Below `length` the contender `below` is faster, above it `above`; [`low`, `high`] is its interval.

    The interval lies between two measured lengths at which the verdicts are decided.
    """

    below: str
    above: str
    length: float
    low: float
    high: float


def crossovers(baseline: str, contender: str, verdicts: Mapping[int, Verdict]) -> list[Crossover]:
    """The lengths at which `contender` and `baseline` change places. verdicts : by length, contender / baseline.

    They lie only between lengths at which the verdict is decided; an empty list means none in the range. If the ratio
    passes 1 several times between two such lengths, the last place is taken, and the interval covers all.
    """
    decided = [n for n in sorted(verdicts) if verdicts[n].kind in (Kind.FASTER, Kind.SLOWER)]
    return [
        _between(baseline, contender, {n: verdicts[n] for n in sorted(verdicts) if left <= n <= right})
        for left, right in itertools.pairwise(decided)
        if verdicts[left].kind is not verdicts[right].kind
    ]


def _between(baseline: str, contender: str, verdicts: Mapping[int, Verdict]) -> Crossover:
    """The crossover between the first and the last of `verdicts`, by length; these two are decided and differ."""
    lengths, found = list(verdicts), list(verdicts.values())
    if found[-1].kind is Kind.FASTER:  # turn the ratio, so that it rises with length
        found, baseline, contender = [one.turned for one in found], contender, baseline
    length = _zeros(lengths, [one.ratio for one in found])[-1]
    low = _zeros(lengths, [one.high for one in found])[0]
    high = _zeros(lengths, [one.low for one in found])[-1]
    beside = max(at for at, n in enumerate(lengths[:-1]) if n <= length)
    doubt = (lengths[beside + 1] / lengths[beside]) ** _DOUBT
    low, high = max(min(low, length) / doubt, lengths[0]), min(max(high, length) * doubt, lengths[-1])
    return Crossover(contender, baseline, length, low, high)


def _zeros(lengths: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """The lengths at which `ratios` rise through 1; they begin below 1 and end above it."""
    places = itertools.pairwise(zip(lengths, map(math.log, ratios), strict=True))
    return [n0 * (n1 / n0) ** (-y0 / (y1 - y0)) for (n0, y0), (n1, y1) in places if y0 <= 0 < y1]


def find_crossovers(analysis: Analysis, group: Group) -> Iterator[tuple[int, Crossover]]:
    """All decided crossovers between contenders that are first somewhere, or the baseline, with the number of heads.

    Of several names for one kernel, only the one that stands for it takes part. The error rate of each interval is
    shared among the pairs, or among the contenders if there are more of those.
    """
    leaders = {name for cell in group.cells.values() for name in cell.won.first} | {analysis.baseline}
    pairs = list(itertools.combinations([one for one in analysis.names if one in leaders], 2))
    for heads, (one, other) in itertools.product(sorted({heads for heads, _ in group.cells}), pairs):
        verdicts = {}
        for (its_heads, length), cell in group.cells.items():
            if its_heads == heads and one in cell.measured and other in cell.measured:
                both = (cell.measured[one], cell.measured[other])
                shared = max(len(pairs), len(cell.measured) - 1)
                if verdict := decidable(both, one, cell.margin, shared).get(other):
                    verdicts[length] = verdict
        for found in crossovers(one, other, verdicts):
            yield heads, found
