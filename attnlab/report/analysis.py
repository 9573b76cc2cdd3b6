"""What a run's results say, computed once: every table, sentence and figure of the report reads it from here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from attnlab.judge.growth import calibration_of
from attnlab.judge.ranking import Ranking, Standing, entered_once, is_second_entry, rank
from attnlab.judge.roofline import Rate, rate
from attnlab.judge.second_entry import SelfTest, self_test
from attnlab.judge.verdicts import latencies
from attnlab.judge.winner import Winner, winner
from attnlab.problem.dtypes import lower
from attnlab.problem.result import Ceiling, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.report import wording
from attnlab.report.neutral import neutral
from attnlab.runs.store import Run

#: a workload's place in its group: (heads, length), the length being that of the keys
At = tuple[int, int]


@dataclass(frozen=True)
class Cell:
    """One workload: who answered (each contender once), who was measured and believed, and their order.

    `margin` is the relative difference that counts as none here. `ranking` holds those that compute in the inputs'
    precision, or where there are none in the highest that there is; `everyone` all who were measured.
    """

    workload: Workload
    answers: Mapping[str, Result]
    measured: Mapping[str, Result]
    faults: Mapping[str, str]
    rates: Mapping[str, Rate]
    ranking: Ranking | None
    margin: float
    everyone: Ranking | None = None

    @cached_property
    def lower(self) -> dict[str, Result]:
        """Those measured that compute in a lower precision than their inputs', by contender."""
        return {name: one for name, one in self.measured.items() if one.computes_in}

    @cached_property
    def pace(self) -> float | None:
        """Seconds that the calibration loop took while the workload was raced, as median over the rounds."""
        loops = calibration_of(latencies(self.measured.values()).values())
        return statistics.median(loops.values()) if loops else None

    def standing(self, name: str) -> Standing | None:
        """The contender's place, in the ranking or apart from it; None where it has no speed."""
        ranked = self.ranking.of(name) if self.ranking else None
        return ranked or (self.everyone.of(name) if self.everyone else None)


@dataclass(frozen=True)
class Group:
    """Workloads that differ in heads and length only: `cells` by (heads, length).

    `name` says what tells it from the other groups of the run, the parts of presets that asked for it first, and is
    empty where there is one. Where the batch follows from the length (so many tokens in all), it does not part them.
    """

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
    def ranked(self) -> dict[At, Ranking]:
        """The rankings of the cells that have one, by heads, then length."""
        return {at: cell.ranking for at, cell in sorted(self.cells.items()) if cell.ranking is not None}


@dataclass(frozen=True)
class Analysis:
    """A run, read. `names` are its contenders, each once, in the plan's order.

    `margin` is the relative difference that counts as none; a cell has a larger one of its own where its self-test
    failed.
    `shared` says in words what all workloads have in common, heads and length apart.
    """

    run: Run
    names: tuple[str, ...]
    baseline: str
    margin: float
    self_test: SelfTest
    groups: tuple[Group, ...]
    shared: str

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, group by group."""
        return [cell for group in self.groups for _, cell in sorted(group.cells.items())]

    @cached_property
    def won(self) -> dict[Workload, Winner]:
        """Who is first at each workload at which anybody was measured."""
        return {
            cell.workload: winner(cell.ranking, self.names) for cell in self.cells if cell.ranking is not None
        }

    @property
    def anything_measured(self) -> bool:
        """Whether any contender has a believed speed."""
        return any(cell.measured for cell in self.cells)


def analyse(run: Run, safe: Callable[[Run], Run] = neutral) -> Analysis:
    """Read `run`: believe or refuse each measurement, hold the self-test, rank every workload.

    safe : what makes its texts fit to be shown, here in Markdown.
    """
    run = safe(run)
    tested, cells = judge(run)
    raced = (result.contender for result in run.results)
    names = dict.fromkeys(entered_once(name) for name in (*run.contenders, *raced))
    shared, groups = _groups(cells, origins(run))
    margin = run.plan.limits.noise_margin
    return Analysis(run, tuple(names), entered_once(run.baseline), margin, tested, groups, shared)


def judge(run: Run) -> tuple[SelfTest, list[Cell]]:
    """The self-test of `run`, and one cell a workload, of its plan first; names and reasons stay as they are."""
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
        _cell(workload, answers[workload], run, baseline, tested.floor(workload)) for workload in answers
    ]
    return tested, cells


def _cell(workload: Workload, answers: Mapping[str, Result], run: Run, baseline: str, margin: float) -> Cell:
    once = {name: one for name, one in answers.items() if not is_second_entry(name)}
    rates, faults = {}, {}
    for name, latency in latencies(once.values()).items():
        ceiling = _ceiling(run, workload.device, once[name].computes_in or workload.dtype)
        if ceiling is not None:
            cold = latency.facts.get("cache") == "cold"
            rates[name] = rate(workload, latency.median, ceiling, cold=cold)
            if (fault := rates[name].fault) is not None:
                faults[name] = fault
    measured = {name: one for name, one in once.items() if one.latency is not None and name not in faults}
    peers = _peers(measured)
    ranking = rank(peers, baseline=baseline, margin=margin)
    everyone = ranking if len(peers) == len(measured) else rank(measured, baseline=baseline, margin=margin)
    return Cell(workload, once, measured, faults, rates, ranking, margin, everyone)


def _peers(measured: Mapping[str, Result]) -> dict[str, Result]:
    """Those that compute in the highest precision of all: speed bought with precision is another matter."""
    formats = {one.computes_in or one.workload.dtype for one in measured.values()}
    highest = next((one for one in formats if not any(lower(other, one) for other in formats)), None)
    return {name: one for name, one in measured.items() if (one.computes_in or one.workload.dtype) == highest}


def _ceiling(run: Run, device: str, dtype: str) -> Ceiling | None:
    return next((one for one in run.ceilings if (one.device, one.dtype) == (device, dtype)), None)


def origins(run: Run) -> dict[Workload, str]:
    """The parts of presets that asked for each workload, between commas; empty for a run without presets."""
    plan = run.plan
    return dict(zip(plan.workloads, plan.origins, strict=True)) if plan.origins else {}


def _groups(cells: list[Cell], asked: Mapping[Workload, str]) -> tuple[str, tuple[Group, ...]]:
    """What all cells share, in words, and the groups of those that share everything but heads and length."""
    grouped: dict[tuple[tuple[str, Any], ...], dict[At, Cell]] = {}
    tokens = _tokens(asked)
    for cell in cells:
        key = tuple(conditions(cell.workload, tokens.get(asked.get(cell.workload, ""))).items())
        grouped.setdefault(key, {})[cell.workload.heads, cell.workload.keys] = cell
    differing = {name for key in grouped for name, value in key if value != dict(next(iter(grouped)))[name]}
    groups = []
    for key, members in grouped.items():
        name = _name(key, differing)
        paths = dict.fromkeys(
            path for cell in members.values() for path in asked.get(cell.workload, "").split(", ") if path
        )
        if len(grouped) > 1 and paths:
            name = ": ".join(filter(None, (", ".join(paths), name)))
        groups.append(Group(name, members))
    common = next(iter(grouped), ())
    said = [wording.condition(name, value) for name, value in common if name not in differing]
    return ", ".join(filter(None, said)), tuple(groups)


def _tokens(asked: Mapping[Workload, str]) -> dict[str, int]:
    """By origin, how many tokens each of its workloads has, where their batches differ and this does not."""
    found = {}
    for origin in set(asked.values()):
        mine = [workload for workload, path in asked.items() if path == origin]
        sizes = {workload.batch * workload.keys for workload in mine}
        if len(sizes) == 1 and len({workload.batch for workload in mine}) > 1:
            found[origin] = sizes.pop()
    return found


def _name(key: Iterable[tuple[str, Any]], differing: Collection[str]) -> str:
    """What tells a group from the others: what is not at its default, or else every default of what differs."""
    mine = [(name, value) for name, value in key if name in differing]
    said = [text for name, value in mine if (text := wording.condition(name, value))]
    if said and ("direction", "forward") in mine:
        said.append("forward")
    return ", ".join(said or (wording.condition(name, value, always=True) for name, value in mine))


def conditions(workload: Workload, tokens: int | None = None) -> dict[str, Any]:
    """Every field but heads and length, those that a reader looks for first in front.

    Fields that follow from others are None where they do: kv_heads from the heads, queries from the keys, value_dim and
    scale from head_dim. tokens : batch × length, where the batch follows from it; it is told as ``16384/n`` then.
    """
    derived = {
        "kv_heads": workload.heads,
        "queries": workload.keys,
        "value_dim": workload.head_dim,
        "scale": 1 / math.sqrt(workload.head_dim),
    }
    if workload.d_model is not None:
        derived["head_dim"] = workload.d_model // workload.heads
    first = ("dtype", "device", "batch", "head_dim")
    rest = (one.name for one in fields(workload) if one.name not in (*first, "heads", "keys"))
    told = {name: getattr(workload, name) for name in (*first, *rest)}
    if tokens is not None:
        told["batch"] = f"{tokens}/n"
    return {name: None if (name, value) in derived.items() else value for name, value in told.items()}
