"""The chapter on the multi-head block: what separate projections cost, what heads cost, and what its parts take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attnlab import units
from attnlab.judge import replication
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.pairing import Verdict, compare
from attnlab.judge.replication import Estimate
from attnlab.problem.block import PROJECTIONS
from attnlab.problem.result import Result
from attnlab.race.instruments import BLOCK_PARTS
from attnlab.report.analysis import Analysis
from attnlab.report.layout import markdown
from attnlab.report.tables import NONE

_SETTING = re.compile(r"projection=(\w+),?")
_FUSED, *_OTHERS = PROJECTIONS
_PARTS = {"projection": "projections", "attention": "attention", "output": "output projection"}


def content(analysis: Analysis) -> dict[str, Any] | None:
    """What the template shows, or None in a run without blocks."""
    groups = [group for group in analysis.groups if _is_block(group)]
    if not groups:
        return None
    most_waited = analysis.run.plan.limits.run_delay
    sentences = [
        said
        for group in groups
        for said in (*_projection_sentences(group), *_part_sentences(group, most_waited))
    ]
    return {"sentences": sentences, "groups": [_content(group, most_waited) for group in groups]}


def tables(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """The figures of the chapter by table: ``projections``, ``heads`` and ``parts`` of blocks; empty without one."""
    groups = [group for group in analysis.groups if _is_block(group)]
    most_waited = analysis.run.plan.limits.run_delay
    return {
        "block_projections": [row for group in groups for row in _projection_rows(group)],
        "block_heads": [row for group in groups for row in _head_rows(group)],
        "block_parts": [row for group in groups for row in _part_rows(group, most_waited)],
    }


def family(name: str) -> tuple[str, str]:
    """A contender without how it projects, and how it does: ``("torch_sdpa", "loop")``."""
    match = _SETTING.search(name)
    plain = _SETTING.sub("", name).replace(",]", "]").replace("[]", "")
    return plain, match[1] if match else _FUSED


def _is_block(group: Group) -> bool:
    return any(cell.workload.d_model is not None for cell in group.cells.values())


def _content(group: Group, most_waited: float) -> dict[str, str]:
    return {
        "heading": f"**{group.name}**\n\n" if group.name else "",
        "projections": _projections(group),
        "heads": _heads(group),
        "parts": _parts(group, most_waited),
    }


# -- projections -------------------------------------------------------------------------------------


def ratios(cell: Cell) -> dict[str, dict[str, Verdict]]:
    """By contender without its projection: each other way of projecting against one matrix for all heads."""
    found: dict[str, dict[str, Result]] = {}
    for name, result in cell.measured.items():
        plain, projection = family(name)
        found.setdefault(plain, {})[projection] = result
    both = {plain: some for plain, some in found.items() if _FUSED in some and len(some) > 1}
    count = sum(len(some) - 1 for some in both.values())
    return {
        plain: {
            other: compare(
                _latency(some[_FUSED]), _latency(some[other]), comparisons=count, margin=cell.margin
            )
            for other in _OTHERS
            if other in some
        }
        for plain, some in both.items()
    }


def _latency(result: Result) -> Any:
    assert result.latency is not None
    return result.latency


def _projections(group: Group) -> str:
    rows = []
    for (heads, n), cell in sorted(group.cells.items()):
        for plain, some in ratios(cell).items():
            told = [_verdict(some.get(other)) for other in _OTHERS]
            rows.append([heads, n, f"`{plain}`", *told])
    return markdown(["heads", "n", "around", *(f"{one} / {_FUSED}" for one in _OTHERS)], rows, left=3)


def _projection_rows(group: Group) -> Iterator[dict[str, Any]]:
    for (heads, n), cell in sorted(group.cells.items()):
        for plain, some in ratios(cell).items():
            for other, one in some.items():
                row = {"group": group.name, "heads": heads, "n": n, "around": plain, "projection": other}
                told = {"low": one.low, "high": one.high, "verdict": str(one.kind)}
                yield {**row, f"over_{_FUSED}": one.ratio, **told}


def _verdict(found: Verdict | None) -> str:
    if found is None:
        return NONE
    span = units.interval(found.low, found.high) if found.low > 0 else "no interval"
    return f"{units.ratio(found.ratio)} {span}"


def _projection_sentences(group: Group) -> Iterator[str]:
    """For each core and number of heads the range over the lengths."""
    by_family: dict[tuple[str, int], dict[int, Verdict]] = {}
    for (heads, n), cell in sorted(group.cells.items()):
        for plain, some in ratios(cell).items():
            if "loop" in some and some["loop"].low > 0 and heads > 1:
                by_family.setdefault((plain, heads), {})[n] = some["loop"]
    suffix = f" ({group.name})" if group.name else ""
    for (plain, heads), verdicts in by_family.items():
        told = "; ".join(f"{_verdict(one)} at n = {n}" for n, one in verdicts.items())
        yield f"With {heads} separate projections `{plain}` takes {told} times as long as with one matrix{suffix}."


# -- heads -------------------------------------------------------------------------------------------


def _heads(group: Group) -> str:
    """Time at each number of heads over that at the fewest, at one length and d_model."""
    if len(group.heads) < 2:
        return ""
    rows = [[n, f"`{name}`", *_over_fewest(there, group.heads)] for n, name, there in _by_heads(group)]
    headers = ["n", "contender", *(f"{count} head{'' if count == 1 else 's'}" for count in group.heads)]
    return markdown(headers, rows, left=2)


def _by_heads(group: Group) -> Iterator[tuple[int, str, list[tuple[int, Result]]]]:
    """Length, contender, and its results by the number of heads, the fewest first, where there are several."""
    names = dict.fromkeys(name for cell in group.cells.values() for name in cell.measured)
    for n in group.lengths:
        for name in names:
            there = [
                (count, cell.measured[name])
                for count in group.heads
                if (cell := group.cells.get((count, n))) is not None and name in cell.measured
            ]
            if len(there) > 1:
                yield n, name, there


def _against_fewest(there: list[tuple[int, Result]]) -> Iterator[tuple[int, Estimate | None]]:
    (_, base), *rest = there
    for count, result in rest:
        yield count, replication.seconds(_latency(result), _latency(base), len(rest))


def _over_fewest(there: list[tuple[int, Result]], counts: list[int]) -> list[str]:
    fewest, base = there[0]
    told = {fewest: units.seconds_text(_latency(base).median)}
    told |= {
        count: NONE if found is None else f"× {_estimate(found)}" for count, found in _against_fewest(there)
    }
    return [told.get(count, NONE) for count in counts]


def _head_rows(group: Group) -> Iterator[dict[str, Any]]:
    for n, name, there in _by_heads(group):
        against = dict(_against_fewest(there))
        for count, result in there:
            row = {"group": group.name, "n": n, "contender": name, "heads": count}
            told = _figures("over_fewest_heads", against.get(count))
            yield {**row, "median_s": _latency(result).median, **told}


def _figures(name: str, found: Estimate | None) -> dict[str, float | None]:
    values = (None,) * 3 if found is None else (found.value, found.low, found.high)
    return dict(zip((name, "low", "high"), values, strict=True))


def _estimate(found: Estimate) -> str:
    span = "no interval" if math.isnan(found.low) else units.interval(found.low, found.high)
    return f"{units.ratio(found.value)} {span}"


# -- parts -------------------------------------------------------------------------------------------


def shares(result: Result, most_waited: float) -> Mapping[str, Estimate]:
    """The share of each part in the time of the three, by its name; empty where no undisturbed one was measured."""
    found = result.measurement(BLOCK_PARTS.quantity)
    if found is None:
        return {}
    every = {part: replication.share(found, f"{part}_s", len(_PARTS), most_waited) for part in _PARTS}
    return {part: one for part, one in every.items() if one is not None}


def _parts(group: Group, most_waited: float) -> str:
    rows = []
    for (heads, n), cell in sorted(group.cells.items()):
        for name, result in cell.measured.items():
            found = shares(result, most_waited)
            if found:
                rows.append([heads, n, f"`{name}`", *map(_percent, found.values())])
    return markdown(["heads", "n", "contender", *_PARTS.values()], rows, left=3)


def _part_rows(group: Group, most_waited: float) -> Iterator[dict[str, Any]]:
    for (heads, n), cell in sorted(group.cells.items()):
        for name, result in cell.measured.items():
            for part, one in shares(result, most_waited).items():
                row = {"group": group.name, "heads": heads, "n": n, "contender": name, "part": part}
                yield {**row, **_figures("share", one)}


def _percent(found: Estimate) -> str:
    text = units.percent(found.value)
    if math.isnan(found.low):
        return text
    low, high = (units.number_text(100 * min(1.0, max(0.0, one)), 2) for one in (found.low, found.high))
    return f"{text} [{low}, {high}]"


def _part_sentences(group: Group, most_waited: float) -> Iterator[str]:
    """At the shortest and the longest length, of the contender that is fastest there."""
    for heads in group.heads:
        told = []
        for n in dict.fromkeys((group.grid[heads][0], group.grid[heads][-1])):
            cell = group.cells[heads, n]
            best = cell.ranking.best.contender if cell.ranking is not None else ""
            found = shares(cell.measured[best], most_waited) if best in cell.measured else {}
            if found:
                parts = ", ".join(f"{_percent(found[part])} {name}" for part, name in _PARTS.items())
                told.append(f"at n = {n} `{best}` spends {parts}")
        if told:
            suffix = f" ({group.name})" if group.name else ""
            count = f"{heads} head{'' if heads == 1 else 's'}"
            yield f"Of the block's time with {count}, {'; '.join(told)}{suffix}."
