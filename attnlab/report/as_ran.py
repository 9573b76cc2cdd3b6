"""What was asked of each contender beside what ran: threads, precision, copies, kernels, set-up, and the same bits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnlab import units
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.groups import place_text
from attnlab.judge.verdicts import PayOff, pay_off
from attnlab.problem.result import Result
from attnlab.race.invariance import Invariance
from attnlab.report.analysis import Analysis
from attnlab.report.layout import markdown

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
            (one for one in settings.rstrip("]").split(",") if one.startswith("threads=")),
            "as many as the library takes",
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


def as_ran(analysis: Analysis) -> list[AsRan]:
    """Each contender that was measured."""
    known = analysis.run.environment.get("contenders")
    facts = known if isinstance(known, Mapping) else {}
    rows = []
    for name in analysis.names:
        results = tuple(cell.measured[name] for cell in analysis.cells if name in cell.measured)
        if results:
            rows.append(AsRan(name, results, facts.get(name) or {}))
    return rows


def contenders(analysis: Analysis) -> list[dict[str, Any]]:
    """What was asked of each beside what ran, as plain values."""
    return [
        {
            "contender": one.name,
            "threads_asked_and_in_pools": one.threads,
            "precision": one.precision,
            "what_ran": one.kernels,
        }
        for one in as_ran(analysis)
    ]


def overview(analysis: Analysis) -> str:
    """A short row a contender: in how many workloads it has a time, its set-up, and whether its answers repeat."""
    ready = {row["contender"]: row for row in setups(analysis)}
    rows = []
    for one in as_ran(analysis):
        asked = sum(one.name in cell.answers for cell in analysis.cells)
        found = ready.get(one.name, {})
        paid = f"after {found['pays_off_calls']:,} calls" if found.get("pays_off_calls") else NONE
        at = f"{len(one.results)} of {asked}"
        rows.append([f"`{one.name}`", at, _seconds(found.get("first_s")), paid, _bits(analysis, one)])
    headers = ["contender", "measured at", "set-up", "pays off", "the same bits"]
    known = [at for at in range(len(headers)) if any(row[at] != NONE for row in rows)]
    return markdown([headers[at] for at in known], [[row[at] for at in known] for row in rows])


def _bits(analysis: Analysis, one: AsRan) -> str:
    """In how many of the ways asked its answers are the same bit for bit."""
    asked = [
        same for found in in_order(analysis) if found.contender == one.name for same in found.same.values()
    ]
    return f"{sum(asked)} of {len(asked)}" if asked else NONE


def fallbacks(analysis: Analysis) -> list[str]:
    """A sentence for each contender of which something else ran than it asked for."""
    found: dict[tuple[str, str | None, str | None], Cell] = {}
    for cell in analysis.cells:
        for name, one in cell.measured.items():
            if one.fell_back:
                found.setdefault((name, one.asked_kernel, one.kernel), cell)
    return [
        f"`{name}` asked for {asked}, but {ran} ran, at {place_text(cell.workload)} first: its figures are those of "
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


def setups(analysis: Analysis) -> list[dict[str, Any]]:
    """The set-up of each contender as plain values, that of its slowest group first."""
    found = [(group, one) for group in analysis.groups for one in set_up(analysis, group)]
    return [
        {
            "contender": one.name,
            "group": group.name,
            "first_s": one.fresh,
            "further_s": one.further,
            "call_s": _call(one),
            "heads": one.cell.workload.heads,
            "n": one.cell.workload.keys,
            "pays_off_calls": one.paid.calls if one.paid else None,
            "pays_off_against": one.paid.against if one.paid else None,
        }
        for group, one in sorted(found, key=lambda pair: pair[1].fresh or 0.0)
    ]


def set_up(analysis: Analysis, group: Group) -> list[SetUp]:
    """Each contender whose set-up was measured, at its largest workload."""
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
    return rows


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


def in_order(analysis: Analysis) -> Iterable[Invariance]:
    """What was asked of the same bits, in the order of the contenders."""
    asked = analysis.run.invariance
    return (one for name in analysis.names for one in asked if one.contender == name)
