"""What a run's results say, computed once: every table, sentence and figure of the report reads it from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnlab.contract.result import Ceiling, Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.program.store import Run
from attnlab.report import wording
from attnlab.statistics.ranking import Ranking, entered_once, is_second_entry, rank
from attnlab.statistics.roofline import Rate, rate
from attnlab.statistics.selftest import SelfTest, self_test


@dataclass(frozen=True)
class Cell:
    """One workload: who answered (each contender once), who was measured and believed, and their order.

    `margin` is the relative difference that counts as none here.
    """

    workload: Workload
    answers: Mapping[str, Result]
    measured: Mapping[str, Result]
    faults: Mapping[str, str]
    rates: Mapping[str, Rate]
    ranking: Ranking | None
    margin: float


@dataclass(frozen=True)
class Family:
    """Workloads that differ in heads and length only: `cells` by (heads, length), `title` what they share."""

    title: str
    conditions: Workload
    cells: Mapping[tuple[int, int], Cell]

    @property
    def heads(self) -> list[int]:
        """Head counts, ascending."""
        return sorted({heads for heads, _ in self.cells})

    @property
    def lengths(self) -> list[int]:
        """Lengths, ascending."""
        return sorted({length for _, length in self.cells})

    @property
    def grid(self) -> dict[int, list[int]]:
        """The lengths asked of each head count."""
        return {count: sorted(n for h, n in self.cells if h == count) for count in self.heads}

    @property
    def ranked(self) -> dict[tuple[int, int], Ranking]:
        """The rankings of the cells that have one, by heads, then length."""
        return {at: cell.ranking for at, cell in sorted(self.cells.items()) if cell.ranking is not None}


@dataclass(frozen=True)
class Evidence:
    """A run, read. `names` are its contenders, each once, in the plan's order.

    `margin` is the relative difference that counts as none: the plan's, or what the self-test showed this
    machine cannot tell apart, whichever is larger. Where the self-test failed the cell's own may be larger still.
    """

    run: Run
    names: tuple[str, ...]
    baseline: str
    margin: float
    self_test: SelfTest
    families: tuple[Family, ...]

    @property
    def cells(self) -> list[Cell]:
        """All cells, family by family."""
        return [cell for family in self.families for _, cell in sorted(family.cells.items())]

    @property
    def anything_measured(self) -> bool:
        """Whether any contender has a believed speed."""
        return any(cell.measured for cell in self.cells)


def gather(run: Run) -> Evidence:
    """Read `run`: believe or refuse each measurement, hold the self-test, rank every workload."""
    answers: dict[Workload, dict[str, Result]] = {workload: {} for workload in run.plan.workloads}
    for result in run.results:
        answers.setdefault(result.workload, {})[result.contender] = result
    measured = {
        workload: {name: one for name, one in results.items() if one.outcome is Outcome.MEASURED}
        for workload, results in answers.items()
    }
    tested = self_test(measured, margin=run.plan.limits.noise_margin)
    baseline = entered_once(run.baseline)
    cells = [
        _cell(workload, answers[workload], run, baseline, tested.resolution_at(workload))
        for workload in answers
    ]
    names = dict.fromkeys(entered_once(name) for name in (*run.contenders, *_raced(run)))
    return Evidence(run, tuple(names), baseline, tested.resolution, tested, _families(cells))


def _raced(run: Run) -> list[str]:
    return [result.contender for result in run.results]


def _cell(workload: Workload, answers: Mapping[str, Result], run: Run, baseline: str, margin: float) -> Cell:
    once = {name: one for name, one in answers.items() if not is_second_entry(name)}
    ceiling = _ceiling(run, workload)
    rates, faults, measured = {}, {}, {}
    for name, result in once.items():
        latency = result.latency
        if latency is None:
            continue
        if ceiling is not None:
            cold = latency.facts.get("cache") == "cold"
            rates[name] = rate(workload, latency.median, ceiling, cold=cold)
            fault = rates[name].fault
            if fault is not None:
                faults[name] = fault
                continue
        measured[name] = result
    ranking = rank(measured, baseline=baseline, margin=margin)
    return Cell(workload, once, measured, faults, rates, ranking, margin)


def _ceiling(run: Run, workload: Workload) -> Ceiling | None:
    for one in run.ceilings:
        if (one.device, one.dtype) == (workload.device, workload.dtype):
            return one
    return None


def _families(cells: list[Cell]) -> tuple[Family, ...]:
    grouped: dict[Workload, dict[tuple[int, int], Cell]] = {}
    for cell in cells:
        conditions, at = _place(cell.workload)
        grouped.setdefault(conditions, {})[at] = cell
    return tuple(
        Family(wording.conditions(conditions), conditions, members) for conditions, members in grouped.items()
    )


def _place(workload: Workload) -> tuple[Workload, tuple[int, int]]:
    """The conditions a workload was measured under, heads and length taken out, and its (heads, length).

    The length is that of the keys; where queries differ in number from keys they are a condition (queries
    of the conditions are 1 for a square workload, and one more than their number otherwise).
    """
    square = workload.queries == workload.keys
    conditions = workload.with_(heads=1, kv_heads=None, keys=1, queries=1 if square else workload.queries + 1)
    return conditions, (workload.heads, workload.keys)
