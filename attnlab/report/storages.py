"""What the form of keys and values costs: time per token against the length of a cache, and one storage beside another.

Storages are different workloads, raced one after the other in processes of their own: no round of one stands beside a
round of the other, so their ratio has no interval of the kind that a verdict has. What stands beside it is how far the
processes of both lie apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from attnlab.contract import units
from attnlab.contract.result import Measurement, Result
from attnlab.contract.storage import CONTIGUOUS, STORAGES
from attnlab.report import wording
from attnlab.report.analysis import Analysis, Cell, Group, conditions
from attnlab.report.layout import markdown
from attnlab.report.tables import NONE, measured_names
from attnlab.statistics import growth

#: keys that a cache is said to be longer by
_MORE = 1000


def content(analysis: Analysis) -> dict[str, Any]:
    """What the chapter's template takes: both kinds of tables, each with its heading; empty where nothing fits."""
    decoding = [(one.name, per_token(analysis, one)) for one in analysis.groups if decodes(one)]
    compared = [(name, beside(analysis, one)) for name, one in families(analysis)]
    return {
        "per_token": [(name, table) for name, table in decoding if table],
        "beside": [(name, table) for name, table in compared if table],
        "more": f"{_MORE:,}",
    }


def decodes(group: Group) -> bool:
    """Whether a fixed number of queries, one or a few, meets keys of several lengths."""
    workloads = [cell.workload for cell in group.cells.values()]
    fixed = len({one.queries for one in workloads}) == 1 and all(one.queries < one.keys for one in workloads)
    return fixed and len(group.lengths) > 1 and not workloads[0].backward


def per_token(analysis: Analysis, group: Group) -> str:
    """A row a contender and head count: median time of a token by the length of the cache, and what more keys cost."""
    rows = []
    for count in group.heads:
        for name in measured_names(analysis, group):
            cells = {n: group.cells[count, n] for n in group.grid[count]}
            times = {n: seconds for n, cell in cells.items() if (seconds := _of_a_token(cell, name))}
            if not times:
                continue
            shown = [units.seconds_text(times[n]) if n in times else NONE for n in group.lengths]
            rows.append([f"`{name}`", count, *shown, _of_more(times)])
    lengths = [f"n = {n}" for n in group.lengths]
    return markdown(["contender", "heads", *lengths, f"{_MORE:,} keys more"], rows)


def _of_a_token(cell: Cell, name: str) -> float | None:
    """Seconds of a call for each of its queries, over all batch elements."""
    latency = _latency(cell, name)
    return None if latency is None else latency.median / (cell.workload.batch * cell.workload.queries)


def _of_more(times: Mapping[int, float]) -> str:
    """What so many keys more cost a token, between the shortest and the longest cache."""
    first, last = min(times), max(times)
    if first == last:
        return NONE
    return units.seconds_text(max(0.0, (times[last] - times[first]) / (last - first) * _MORE))


def families(analysis: Analysis) -> list[tuple[str, Mapping[str, Group]]]:
    """Groups that differ in how keys and values are stored and in nothing else, by storage; with what they share.

    The name says what tells a family from the others, and is empty where there is one.
    """
    found: dict[tuple[tuple[str, Any], ...], dict[str, Group]] = {}
    for group in analysis.groups:
        told = conditions(next(iter(group.cells.values())).workload)
        storage = told.pop("storage")
        found.setdefault(tuple(told.items()), {})[storage] = group
    several = {key: groups for key, groups in found.items() if len(groups) > 1}
    differing = {
        name for key in several for name, value in key if value != dict(next(iter(several), ()))[name]
    }
    names = {
        key: ", ".join(
            wording.condition(name, value, always=True) for name, value in key if name in differing
        )
        for key in several
    }
    return [(names[key], groups) for key, groups in several.items()]


def beside(analysis: Analysis, groups: Mapping[str, Group]) -> str:
    """A row a length and contender: the median with each storage, as a multiple of contiguous, and the range of it.

    The range is that of the quotients of all pairs of processes, one of each workload: median over median.
    """
    storages = [one for one in STORAGES if one in groups]
    plain = groups.get(CONTIGUOUS)
    rows = []
    places = sorted({at for group in groups.values() for at in group.cells})
    names = dict.fromkeys(name for group in groups.values() for name in measured_names(analysis, group))
    for (count, n), name in ((at, name) for at in places for name in names):
        found = {one: _at(groups[one], (count, n), name) for one in storages}
        if sum(one is not None for one in found.values()) < 2:
            continue
        core = _at(plain, (count, n), name) if plain else None
        rows.append([f"`{name}`", count, n, *(_shown(found[one], core, one) for one in storages)])
    return markdown(["contender", "heads", "n", *storages], rows)


def _at(group: Group | None, at: tuple[int, int], name: str) -> Measurement | None:
    cell = None if group is None else group.cells.get(at)
    return None if cell is None else _latency(cell, name)


def _latency(cell: Cell, name: str) -> Measurement | None:
    result: Result | None = cell.measured.get(name)
    return None if result is None else result.latency


def _shown(latency: Measurement | None, core: Measurement | None, storage: str) -> str:
    """``1.20 ms, 2.1 (1.9 to 2.3)``"""
    if latency is None:
        return NONE
    text = units.seconds_text(latency.median)
    if core is None or storage == CONTIGUOUS:
        return text
    low, high = ratio_range(latency, core)
    return f"{text}, {units.figures(latency.median / core.median)} ({units.figures(low)} to {units.figures(high)})"


def ratio_range(one: Measurement, other: Measurement) -> tuple[float, float]:
    """Least and greatest of (median of a process of `one`) / (median of a process of `other`), over all pairs."""
    times, of_other = (
        [statistics.median(rounds) for rounds in growth.rounds_of(latency)] for latency in (one, other)
    )
    return min(times) / max(of_other), max(times) / min(of_other)
