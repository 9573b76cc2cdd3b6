"""What the form of keys and values costs: time per token against the length of a cache, and one storage beside another.

Storages are different workloads, raced one after the other in processes of their own: no round of one stands beside a
round of the other, so their ratio has no interval of the kind that a verdict has. What stands beside it is how far the
processes of both lie apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnlab import units
from attnlab.judge import growth
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.groups import condition, conditions
from attnlab.problem.result import Measurement, Result
from attnlab.problem.workload import CONTIGUOUS, STORAGES
from attnlab.report.analysis import Analysis
from attnlab.report.layout import markdown
from attnlab.report.tables import NONE, measured_names

#: keys that a cache is said to be longer by
_MORE = 1000


def content(analysis: Analysis) -> dict[str, Any]:
    """What the chapter's template takes: both kinds of tables, each with its heading; empty where nothing fits."""
    found = families(analysis)
    decoding = [
        (name, per_token(analysis, groups)) for name, groups in found if all(map(decodes, groups.values()))
    ]
    compared = [(name, beside(analysis, groups)) for name, groups in found if len(groups) > 1]
    return {
        "per_token": [(name, table) for name, table in decoding if table],
        "beside": [(name, table) for name, table in compared if table],
        "more": f"{_MORE:,}",
    }


def rows(analysis: Analysis) -> list[dict[str, Any]]:
    """The figures of the chapter: a row a workload and contender of those that it tells of."""
    told = (
        (family, groups, storage, group)
        for family, groups in families(analysis)
        if len(groups) > 1 or all(map(decodes, groups.values()))
        for storage, group in groups.items()
    )
    return [
        {
            "conditions": family,
            "storage": storage,
            "contender": name,
            "heads": count,
            "n": n,
            **_figures(cell, name, _at(groups.get(CONTIGUOUS), (count, n), name)),
        }
        for family, groups, storage, group in told
        for (count, n), cell in sorted(group.cells.items())
        for name in measured_names(analysis, group)
        if _latency(cell, name) is not None
    ]


def _figures(cell: Cell, name: str, core: Measurement | None) -> dict[str, float | None]:
    latency, token = _latency(cell, name), _of_a_token(cell, name)
    assert latency is not None and token is not None
    span = (None, None) if core is None else ratio_range(latency, core) or (None, None)
    over = None if core is None else latency.median / core.median
    times = {"median_s": latency.median, "seconds_per_token": token.median}
    return {**times, "over_contiguous": over, "least": span[0], "greatest": span[1]}


def decodes(group: Group) -> bool:
    """Whether a fixed number of queries, one or a few, meets keys of several lengths."""
    workloads = [cell.workload for cell in group.cells.values()]
    fixed = len({one.queries for one in workloads}) == 1 and all(one.queries < one.keys for one in workloads)
    return fixed and len(group.lengths) > 1 and not workloads[0].backward


def families(analysis: Analysis) -> list[tuple[str, Mapping[str, Group]]]:
    """Groups that differ in how keys and values are stored and in nothing else, by storage; with what tells them apart.

    The name is empty where there is one family.
    """
    found: dict[tuple[tuple[str, Any], ...], dict[str, Group]] = {}
    for group in analysis.groups:
        told = conditions(next(iter(group.cells.values())).workload)
        storage = told.pop("storage")
        found.setdefault(tuple(told.items()), {})[storage] = group
    first = dict(next(iter(found), ()))
    differing = {name for key in found for name, value in key if value != first[name]}
    return [
        (", ".join(condition(*one, always=True) for one in key if one[0] in differing), groups)
        for key, groups in found.items()
    ]


def per_token(analysis: Analysis, groups: Mapping[str, Group]) -> str:
    """A row a contender, storage and head count: median time of a token by the cache's length, and of more keys."""
    rows = []
    lengths = sorted({n for group in groups.values() for n in group.lengths})
    for storage in filter(groups.get, STORAGES):
        group = groups[storage]
        for count in group.heads:
            for name in measured_names(analysis, group):
                cells = {n: group.cells[count, n] for n in group.grid[count]}
                times = {n: found for n, cell in cells.items() if (found := _of_a_token(cell, name))}
                shown = [units.seconds_text(times[n].median) if n in times else NONE for n in lengths]
                if times:
                    rows.append([f"`{name}`", storage, count, *shown, _of_more(times)])
    headers = ["contender", "storage", "heads", *(f"n = {n}" for n in lengths), f"{_MORE:,} keys more"]
    return markdown(headers, rows, left=2)


class _Token(NamedTuple):
    """Seconds of a token: the median, and that of every process."""

    median: float
    processes: list[float]


def _of_a_token(cell: Cell, name: str) -> _Token | None:
    """Of a call for each of its queries, over all batch elements."""
    latency = _latency(cell, name)
    if latency is None:
        return None
    tokens = cell.workload.batch * cell.workload.queries
    return _Token(latency.median / tokens, [one / tokens for one in _processes(latency)])


def _of_more(times: Mapping[int, _Token]) -> str:
    """What so many keys more cost a token, between the shortest and the longest cache, if that is more than scatter."""
    first, last = times[min(times)], times[max(times)]
    if min(times) == max(times):
        return NONE
    if min(last.processes) <= max(first.processes):
        return "no more than the scatter"
    return units.seconds_text((last.median - first.median) / (max(times) - min(times)) * _MORE)


def beside(analysis: Analysis, groups: Mapping[str, Group]) -> str:
    """A row a length and contender: the median with each storage, as a multiple of contiguous, and the range of it."""
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
    text += f", {units.number_text(latency.median / core.median)}"
    span = ratio_range(latency, core)
    return text if span is None else f"{text} ({units.number_text(span[0])} to {units.number_text(span[1])})"


def ratio_range(one: Measurement, other: Measurement) -> tuple[float, float] | None:
    """Least and greatest of (median of a process of `one`) / (median of a process of `other`), over all pairs.

    None where either has one process: that says nothing of how far processes lie apart.
    """
    times, of_other = _processes(one), _processes(other)
    if min(len(times), len(of_other)) < 2:
        return None
    return min(times) / max(of_other), max(times) / min(of_other)


def _processes(latency: Measurement) -> list[float]:
    """The median of every process, in seconds."""
    return [statistics.median(rounds) for rounds in growth.rounds_of(latency)]
