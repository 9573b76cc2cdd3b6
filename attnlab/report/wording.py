"""Words for sets of workloads and names: ranges, lists, conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from attnlab.problem.fields import in_label, spoken
from attnlab.problem.workload import CONTIGUOUS, STORAGES, Workload

#: how a condition is said where its part of a workload's label would not be understood
_CONDITIONS = {
    "dtype": "{}",
    "batch": "batch {}",
    "head_dim": "head_dim {}",
    "d_model": "d_model {}",
    "kv_heads": "{} key heads",
    "queries": "{} queries over n keys",
    "value_dim": "value_dim {}",
    "scale": "scale {:g}",
    "seed": "seed {}",
}
#: and where it is at its default
_DEFAULTS = {
    "kv_heads": "as many key heads as heads",
    "head_dim": "head_dim = d_model / heads",
    "d_model": "the core alone",
    "queries": "as many queries as keys",
    "value_dim": "value_dim = head_dim",
    "scale": "scale 1/√d",
    "causal": "not causal",
    "key_lengths": "no padding",
    "storage": "contiguous keys and values",
    "splits": "whole keys",
    "seed": "seed 0",
}


def listed(items: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def named(names: Iterable[str], last: str = "and") -> str:
    """Contender names as code, listed."""
    return listed([f"`{name}`" for name in names], last)


def counted(count: int, noun: str) -> str:
    """``1 head``, ``4 heads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def heads(counts: Sequence[int]) -> str:
    """``1 head``, ``4 and 16 heads``."""
    noun = "head" if list(counts) == [1] else "heads"
    return f"{listed([str(one) for one in counts])} {noun}"


def place(workload: Workload) -> str:
    """Where a workload stands in its group: ``n = 256, 4 heads``."""
    return f"n = {workload.keys}, {counted(workload.heads, 'head')}"


def lengths(wanted: Collection[int], measured: Sequence[int]) -> str:
    """`wanted` as ranges over the lengths `measured`: ``64 ≤ n ≤ 256 and n = 1024``."""
    runs: list[list[int]] = []
    previous = None
    for position, n in enumerate(measured):
        if n not in wanted:
            continue
        if previous is not None and position == previous + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
        previous = position
    return listed([f"n = {run[0]}" if len(run) == 1 else f"{run[0]} ≤ n ≤ {run[-1]}" for run in runs])


def where(cells: Iterable[tuple[int, int]], grid: Mapping[int, Sequence[int]]) -> str:
    """Where (heads, length) pairs lie in what was measured: ``64 ≤ n ≤ 256 at 1 and 4 heads``.

    Head counts with the same lengths are named together.
    """
    by_heads: dict[int, set[int]] = {}
    for count, n in cells:
        by_heads.setdefault(count, set()).add(n)
    by_text: dict[str, list[int]] = {}
    for count in sorted(by_heads):
        by_text.setdefault(lengths(by_heads[count], grid[count]), []).append(count)
    return "; ".join(f"{text} at {heads(counts)}" for text, counts in by_text.items())


def condition(name: str, value: Any, *, always: bool = False) -> str:
    """What the field `name` of a workload says of it in words; empty at its default, unless `always`.

    A field without words of its own here is said as in a workload's label.
    """
    if name == "device":
        return {"cpu": "CPU", "cuda": "CUDA"}.get(value, str(value))
    if name == "distribution":
        shown = in_label(Workload.__dataclass_fields__[name], value) or str(value)
        return f"{shown} inputs" if always or value != "normal" else ""
    if name == "storage" and value not in (None, CONTIGUOUS):
        return str(STORAGES.get(value, value))
    if name in _CONDITIONS and value is not None and (name, value) != ("seed", 0):
        text = _CONDITIONS[name].format(value)
        return text.replace("heads", "head").replace("queries", "query") if value == 1 else text
    text = "" if value is None else in_label(Workload.__dataclass_fields__[name], value)
    if text or not always:
        return text
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    absent = value is None or value is False or value in ("", "none")
    return f"no {name}" if absent else spoken(value)
