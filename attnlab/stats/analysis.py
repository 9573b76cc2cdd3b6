"""What the results of a run say, judged once: whom to believe, who is first at each workload, whom to choose.

Report, page, terminal, dataset and routing all read these values; nobody else turns results into winners.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnlab.stats.groups import grouped
from attnlab.stats.ranking import (
    Ranking,
    SelfTest,
    Standing,
    Sure,
    Winner,
    entered_once,
    is_second_entry,
    rank,
    self_test,
    winner,
)
from attnlab.stats.verdicts import MARGIN, latencies
from attnlab.text import percent
from attnlab.workload.result import Ceiling, Outcome, Result
from attnlab.workload.vocabulary import lower
from attnlab.workload.workload import Workload

#: a workload's place in its group: (heads, length), the length being that of the keys
At = tuple[int, int]
#: a memory that is more than this many times another's counts as larger, where time does not decide
MORE_MEMORY = 1.5


# -- a time beside what this machine can do ----------------------------------------------------------
#
# Williams, Waterman and Patterson 2009, "Roofline". The ceiling of arithmetic is measured: the best matrix product of
# the libraries here. A kernel may honestly do better than theirs (OpenVINO and ONNX Runtime reached three times the
# rate of NumPy's product on an AMD EPYC), so only a rate that no library's choice of instructions explains is a failed
# measurement.

#: a share of the copy bandwidth above this is a failed measurement
_BELIEVED_COPY = 1.05
#: shares of the matrix-product rate above these are failed measurements. On a CPU, libraries that use 128-bit vectors
#: and no fused multiply-add, as all here may, give away a factor of 8 (512 bits, and two operations in one); on CUDA
#: all take the vendor's product
BELIEVED = {"cpu": 8.0, "cuda": 1.05}
#: buffers of the copy benchmark; a warm call on less may stay in the caches and outrun memory honestly
_BEYOND_CACHES = 2**28


@dataclass(frozen=True)
class Rate:
    """`flops` achieved in FLOP/s; `compute` and `bandwidth` as shares of the two ceilings."""

    flops: float
    compute: float
    bandwidth: float
    device: str
    memory_bound_believed: bool

    @property
    def limited_by(self) -> str:
        """The ceiling that explains at least half of the time; "overhead" where neither does.

        Overhead is everything else: dispatch, softmax, and the traffic of intermediate arrays.
        """
        if max(self.compute, self.bandwidth) < 0.5:
            return "overhead"
        return "compute" if self.compute >= self.bandwidth else "bandwidth"

    @property
    def fault(self) -> str | None:
        """Why the time cannot be believed, or None."""
        if self.compute > BELIEVED[self.device]:
            return f"{percent(self.compute, 3)} of the best matrix-multiply rate: a failed measurement, not a speed"
        if self.memory_bound_believed and self.bandwidth > _BELIEVED_COPY:
            return f"{percent(self.bandwidth, 3)} of the copy bandwidth: a failed measurement, not a speed"
        return None


def rate(workload: Workload, seconds: float, ceiling: Ceiling, *, cold: bool) -> Rate:
    """The rate of a call that took `seconds`, against `ceiling` of the same device and dtype.

    The copy bandwidth bounds a call only where its bytes must come from memory: with `cold` caches, or
    where its inputs and output are too large for any.
    """
    flops, least_bytes = workload.flops / seconds, workload.least_bytes
    return Rate(
        flops=flops,
        compute=flops / ceiling.matmul_flops,
        bandwidth=least_bytes / seconds / ceiling.copy_bytes,
        device=ceiling.device,
        memory_bound_believed=cold or least_bytes > _BEYOND_CACHES,
    )


# -- workloads and groups of them --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """One workload: who answered (each contender once), who was measured and believed, and their order.

    `group` is the name of its group. `faults` says of measurements why they are not believed; `rates` holds what the
    machine's ceilings say of a time. `margin` is the relative difference that counts as none here. `ranking` holds
    those that compute in the inputs' precision, or where there are none in the highest that there is; `everyone` all
    who were measured. `won` says who is first, if anybody.
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

    @property
    def at(self) -> At:
        """Its place in its group."""
        return self.workload.heads, self.workload.keys

    @cached_property
    def lower(self) -> dict[str, Result]:
        """Those measured that compute in a lower precision than their inputs', by contender."""
        return {name: one for name, one in self.measured.items() if one.computes_in}

    @cached_property
    def pace(self) -> float | None:
        """Seconds that the calibration loop took while the workload was raced, as median over the rounds."""
        loops: dict[float, float] = {}
        for one in latencies(self.measured.values()).values():  # those of another program have none
            loops |= zip(one.columns.get("round", ()), one.columns.get("calibration_s", ()), strict=False)
        return statistics.median(loops.values()) if loops else None

    def peer(self, name: str) -> Standing | None:
        """The contender's place in the ranking; None where it has no speed, or computes in a lower precision."""
        return self.ranking.of(name) if self.ranking else None

    def standing(self, name: str) -> Standing | None:
        """The contender's place, in the ranking or apart from it; None where it has no speed."""
        return self.peer(name) or (self.everyone.of(name) if self.everyone else None)

    @cached_property
    def first(self) -> frozenset[str]:
        """Everybody who is first here or tied for it, under every name of a kernel."""
        if self.ranking is None:
            return frozenset()
        standings = self.ranking.standings
        kernels = {one.implementation for one in standings if one.contender in self.won.first}
        return frozenset(one.contender for one in standings if one.implementation in kernels)

    @cached_property
    def near(self) -> frozenset[str]:
        """The fastest, and those known to be hardly slower, under every name of a kernel."""
        if self.ranking is None:
            return frozenset()
        kernels = {one.implementation for one in self.ranking.near}
        return frozenset(one.contender for one in self.ranking.standings if one.implementation in kernels)

    def behind(self, name: str) -> float:
        """How many times as long as the fastest `name` takes: 1 where it shares the first place, inf without a time."""
        mine = self.peer(name)
        if mine is None:
            return float("inf")
        if name in self.first:
            return 1.0
        return mine.against_best.ratio if mine.against_best else mine.seconds / self.won.seconds


@dataclass(frozen=True, eq=False)
class Group:
    """Workloads that differ in heads and length only: `cells` by (heads, length), see `groups.grouped`."""

    name: str
    cells: Mapping[At, Cell]

    @cached_property
    def heads(self) -> list[int]:
        """Head counts, ascending."""
        return sorted({heads for heads, _ in self.cells})

    @cached_property
    def lengths(self) -> list[int]:
        """Lengths, ascending."""
        return sorted({length for _, length in self.cells})

    @cached_property
    def grid(self) -> dict[int, list[int]]:
        """The lengths asked of each head count."""
        found: dict[int, list[int]] = {count: [] for count in self.heads}
        for heads, length in sorted(self.cells):
            found[heads].append(length)
        return found

    @cached_property
    def ordered(self) -> list[Cell]:
        """The cells by heads, then length."""
        return [cell for _, cell in sorted(self.cells.items())]

    @cached_property
    def won(self) -> list[Cell]:
        """Those of them at which anybody was measured."""
        return [cell for cell in self.ordered if cell.won.sure is not Sure.NOBODY]

    @cached_property
    def measured(self) -> frozenset[str]:
        """Contenders with a speed anywhere in the group."""
        return frozenset(name for cell in self.cells.values() for name in cell.measured)


@dataclass(frozen=True, eq=False)
class Analysis:
    """The results of a run, judged. `names` are its contenders, each once, in the plan's order.

    `margin` is the relative difference that counts as none; a cell has a larger one of its own where its self-test
    failed.
    `shared` says in words what all workloads have in common, heads and length apart.
    """

    names: tuple[str, ...]
    baseline: str
    margin: float
    self_test: SelfTest
    groups: tuple[Group, ...]
    shared: str

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, group by group."""
        return [cell for group in self.groups for cell in group.ordered]

    @cached_property
    def won(self) -> list[Cell]:
        """Those at which anybody was measured, and one is first."""
        return [cell for group in self.groups for cell in group.won]


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
    """Judge `results`: believe or refuse each measurement, hold the self-test, rank every workload.

    Those of which no turn counts are left out.

    workloads, contenders : those asked for, in the order in which they are shown; those of results come after them
    origins : of each of `workloads`, the parts of presets that asked for it; none for a run without presets
    """
    asked = dict(zip(workloads, origins, strict=True)) if origins else {}
    answers: dict[Workload, dict[str, Result]] = {workload: {} for workload in asked or workloads}
    raced = dict.fromkeys(contenders)
    for result in (one for one in results if not one.uncounted):
        answers.setdefault(result.workload, {})[result.contender] = result
        raced[result.contender] = None
    names = tuple(dict.fromkeys(map(entered_once, raced)))
    tested = self_test(
        {
            workload: {name: one for name, one in some.items() if one.outcome is Outcome.MEASURED}
            for workload, some in answers.items()
        },
        margin=margin,
    )
    baseline = entered_once(baseline)
    shared, groups = grouped({workload: asked.get(workload, "") for workload in answers})

    def cell(workload: Workload, group: str) -> Cell:
        once = {name: one for name, one in answers[workload].items() if not is_second_entry(name)}
        margin_here = tested.floor(workload)
        rates = _rates(workload, once, ceilings)
        faults = {name: fault for name, one in rates.items() if (fault := one.fault) is not None}
        measured = {name: one for name, one in once.items() if one.latency is not None and name not in faults}
        peers = _peers(measured)
        ranking = rank(peers, baseline=baseline, margin=margin_here)
        everyone = (
            ranking if len(peers) == len(measured) else rank(measured, baseline=baseline, margin=margin_here)
        )
        return Cell(
            workload,
            group,
            once,
            measured,
            faults,
            rates,
            margin_here,
            ranking,
            everyone,
            winner(ranking, names),
        )

    made = tuple(
        Group(name, {(one.heads, one.keys): cell(one, name) for one in members}) for name, members in groups
    )
    return Analysis(names, baseline, margin, tested, made, shared)


def _rates(workload: Workload, results: Mapping[str, Result], ceilings: Sequence[Ceiling]) -> dict[str, Rate]:
    """What share of the ceiling of its device and number format each reached, where that is known."""
    found = {}
    for name, latency in latencies(results.values()).items():
        wanted = (workload.device, results[name].computes_in or workload.dtype)
        for ceiling in ceilings:
            if (ceiling.device, ceiling.dtype) == wanted:
                cold = latency.facts.get("cache") == "cold"
                found[name] = rate(workload, latency.median, ceiling, cold=cold)
                break
    return found


def _peers(measured: Mapping[str, Result]) -> dict[str, Result]:
    """Those that compute in the highest precision of all: speed bought with precision is another matter."""
    formats = {one.computes_in or one.workload.dtype for one in measured.values()}
    highest = next((one for one in formats if not any(lower(other, one) for other in formats)), None)
    return {name: one for name, one in measured.items() if (one.computes_in or one.workload.dtype) == highest}


# -- one contender for many workloads ----------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The contender to run where one is to do for all `places`, at each of which somebody was measured.

    It is decidedly the fastest at `won`, hardly slower than that if at all at `close`, and perhaps the fastest at
    `tied`; at `behind` another is faster, and at `absent` it has no time.
    """

    name: str
    places: tuple[Cell, ...]

    @cached_property
    def won(self) -> list[Cell]:
        """Where it is first, and nobody is tied with it."""
        return self._sure(Sure.DECIDED)

    @cached_property
    def tied(self) -> list[Cell]:
        """Where the run cannot tell whether it is first."""
        return self._sure(Sure.TIE)

    @cached_property
    def close(self) -> list[Cell]:
        """Where others may be as fast, and all of them are at most 5 % apart from the fastest."""
        return self._sure(Sure.CLOSE)

    def _sure(self, sure: Sure) -> list[Cell]:
        return [one for one in self.places if one.won.sure is sure and self.name in one.first]

    @cached_property
    def behind(self) -> list[Cell]:
        """Where another one is decidedly faster."""
        return [
            one
            for one in self.places
            if 1 < one.behind(self.name) < float("inf") and one.won.sure is not Sure.NO_INTERVAL
        ]

    @cached_property
    def absent(self) -> list[Cell]:
        """Where others have a time and it has none."""
        return [one for one in self.places if one.behind(self.name) == float("inf")]


def choose(found: Sequence[Cell], names: Sequence[str]) -> Choice | None:
    """Whom of `names` to run at all of `found`: who is fastest, or hardly slower, at most of them; None without any.

    Of several such the one that needs the least memory at the largest workload, and of those that need about as much
    the first of `names`.
    """
    counts = Counter(name for one in found for name in one.near)
    best = [name for name in names if name in counts and counts[name] == max(counts.values())]
    if not best:
        return None
    largest = largest_with_peaks(found, best)
    peaks = {} if largest is None else peaks_of(largest, best)
    if len(peaks) == len(best):
        best = [name for name in best if peaks[name] <= MORE_MEMORY * min(peaks.values())]
    return Choice(best[0], tuple(found))


def largest_with_peaks(found: Collection[Cell], names: Collection[str]) -> Cell | None:
    """The workload with the largest score matrix at which most of `names` have a peak of memory."""
    known = [(one, count) for one in found if (count := len(peaks_of(one, names)))]
    most = max((count for _, count in known), default=0)
    full = [one for one, count in known if count == most]
    return max(full, key=lambda one: one.workload.score_bytes, default=None)


def peaks_of(cell: Cell, names: Collection[str] | None = None) -> dict[str, int]:
    """Peak bytes by contender at a workload, of `names` alone where they are given."""
    return {
        name: peak
        for name, result in cell.measured.items()
        if (names is None or name in names) and (peak := result.peak_bytes) is not None
    }
