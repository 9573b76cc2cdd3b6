"""What was asked of each contender beside what ran: threads, precision, copies, kernels, set-up, and the same bits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from attnlab.contract import units
from attnlab.contract.result import Result
from attnlab.measuring.invariance import ASKED, Invariance
from attnlab.report import wording
from attnlab.report.analysis import Analysis, Cell, Group
from attnlab.report.layout import table
from attnlab.statistics.setup import PayOff, pay_off

NONE = "–"


@dataclass(frozen=True)
class AsRan:
    """One contender as it ran in a run: its measured results, and the facts of its process."""

    name: str
    results: tuple[Result, ...]
    facts: Mapping[str, Any]

    @property
    def precision(self) -> str:
        """Inputs, and what is computed in where that is another."""
        pairs = dict.fromkeys((one.workload.dtype, one.computes_in) for one in self.results)
        said = [dtype if lower is None else f"{dtype}, computed in {lower}" for dtype, lower in pairs]
        return "; ".join([*said, *_modes(self.facts)])

    @property
    def threads(self) -> str:
        """As asked, and as the thread pools of its process tell."""
        _, _, settings = self.name.partition("[")
        asked = next(
            (one for one in settings.rstrip("]").split(",") if one.startswith("threads=")), "all cores"
        )
        pools = self.facts.get("pools") or ()
        counts = sorted({int(one["num_threads"]) for one in pools if one.get("num_threads")})
        return f"{asked}: {', '.join(map(str, counts))}" if counts else asked

    @property
    def kernels(self) -> str:
        """What ran, and what was asked for where that did not."""
        ran = dict.fromkeys(one.kernel for one in self.results if one.kernel)
        fallen = dict.fromkeys(one.asked_kernel for one in self.results if one.fell_back)
        said = "; ".join(map(str, ran)) or "not told"
        return said + "".join(f" (**asked for {one}**)" for one in fallen)


_AS_RAN: Mapping[str, Callable[[AsRan], object]] = {
    "contender": lambda one: f"`{one.name}`",
    "threads asked: in its pools": lambda one: one.threads,
    "precision": lambda one: one.precision,
    "what ran": lambda one: one.kernels,
}


def as_ran(analysis: Analysis) -> str:
    """A row for each contender that was measured."""
    known = analysis.run.environment.get("contenders")
    facts = known if isinstance(known, Mapping) else {}
    rows = []
    for name in analysis.names:
        results = tuple(cell.measured[name] for cell in analysis.cells if name in cell.measured)
        if results:
            rows.append(AsRan(name, results, facts.get(name) or {}))
    return table(rows, _AS_RAN, left=4)


def fallbacks(analysis: Analysis) -> list[str]:
    """A sentence for each contender of which something else ran than it asked for."""
    found: dict[tuple[str, str | None, str | None], Cell] = {}
    for cell in analysis.cells:
        for name, one in cell.measured.items():
            if one.fell_back:
                found.setdefault((name, one.asked_kernel, one.kernel), cell)
    return [
        f"`{name}` asked for {asked}, but {ran} ran, at {wording.place(cell.workload)} first: its figures are those of "
        "what ran."
        for (name, asked, ran), cell in found.items()
    ]


def _modes(facts: Mapping[str, Any]) -> list[str]:
    modes = facts.get("modes")
    return [f"{name} {value}" for name, value in modes.items()] if isinstance(modes, Mapping) else []


# -- set-up ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetUp:
    """What one contender takes to get ready in a group, in a fresh process and for a further workload, in seconds."""

    name: str
    fresh: float | None
    further: float | None
    cell: Cell
    paid: PayOff | None


_SET_UP: Mapping[str, Callable[[SetUp], object]] = {
    "contender": lambda one: f"`{one.name}`",
    "first in its process": lambda one: _seconds(one.fresh),
    "a further workload": lambda one: _seconds(one.further),
    "one call": lambda one: f"{_seconds(_call(one))} at {wording.place(one.cell.workload)}",
    "pays off": lambda one: (
        NONE if one.paid is None else f"after {one.paid.calls:,} calls, against `{one.paid.against}`"
    ),
}


def set_up(analysis: Analysis, group: Group) -> str:
    """A row for each contender whose set-up was measured, at its largest workload."""
    rows = []
    samples = {name: _samples(group, name) for name in analysis.names}
    larger = {
        name: max(map(statistics.median, filter(None, both)), default=None) for name, both in samples.items()
    }
    for name in analysis.names:
        places = [at for at, cell in group.cells.items() if name in cell.measured]
        fresh, further = samples[name]
        if not places or not (fresh or further):
            continue
        cell = group.cells[max(places, key=lambda at: (at[1], at[0]))]
        known = {one: seconds for one in cell.measured if (seconds := larger[one]) is not None}
        paid = pay_off(list(cell.measured.values()), name, known)
        rows.append(SetUp(name, _median(fresh), _median(further), cell, paid))
    return table(rows, _SET_UP, left=1)


def _samples(group: Group, name: str) -> tuple[list[float], list[float]]:
    """Seconds in processes that had prepared nothing before, and in others."""
    split: tuple[list[float], list[float]] = ([], [])
    for cell in group.cells.values():
        found = cell.measured[name].measurement("setup") if name in cell.measured else None
        for sample, fresh in zip(found.samples, found.columns["fresh"], strict=True) if found else ():
            split[0 if fresh else 1].append(sample)
    return split


def _median(samples: list[float]) -> float | None:
    return statistics.median(samples) if samples else None


def _seconds(seconds: float | None) -> str:
    return NONE if seconds is None else units.seconds_text(seconds)


def _call(one: SetUp) -> float | None:
    latency = one.cell.measured[one.name].latency
    return None if latency is None else latency.median


# -- the same bits -----------------------------------------------------------------------------------


def same_bits(analysis: Analysis) -> str:
    """A row for each contender and number format that was asked for the same bits again."""
    columns: dict[str, Callable[[Invariance], object]] = {
        "contender": lambda one: f"`{one.contender}`",
        "dtype": lambda one: one.dtype,
    }
    for name in ASKED:
        columns[name] = partial(_same, name)
    columns["of"] = lambda one: f"{one.queries} × {one.keys}" if one.same else one.reason or NONE
    return table(_in_order(analysis), columns, left=2)


def _same(asked: str, one: Invariance) -> str:
    if asked not in one.same:
        return NONE
    return "same" if one.same[asked] else "differ"


def _in_order(analysis: Analysis) -> Iterable[Invariance]:
    asked = analysis.run.invariance
    return (one for name in analysis.names for one in asked if one.contender == name)
