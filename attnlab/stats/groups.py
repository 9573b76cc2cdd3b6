"""Workloads in groups that differ in heads and length only, and what tells a group from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from attnlab.workload.declaring import in_label, spoken
from attnlab.workload.workload import Workload

#: fields that follow from others, unless they are given
_FOLLOWING = ("kv_heads", "queries", "value_dim", "scale")
_FIELDS = {one.name: one for one in fields(Workload)}
#: all but heads and length, those that a reader looks for first in front
_CONDITIONS = tuple(
    one
    for one in dict.fromkeys(("dtype", "device", "batch", "head_dim", *_FIELDS))
    if one not in ("heads", "keys")
)


def grouped(asked: Mapping[Workload, str]) -> tuple[str, list[tuple[str, list[Workload]]]]:
    """What all workloads share, heads and length apart, and the groups of those that share everything else.

    asked : by workload the parts of presets that asked for it, between commas, or "". A group's name says what tells it
    from the others, those parts first; it is empty where there is one group. Where the batch follows from the length
    (so many tokens in all), it does not part them.
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
    """By origin, how many tokens each of its workloads has, where their batches differ and this does not."""
    found = {}
    for origin in set(asked.values()) - {""}:
        mine = [workload for workload, path in asked.items() if path == origin]
        sizes = {workload.batch * workload.keys for workload in mine}
        if len(sizes) == 1 and len({workload.batch for workload in mine}) > 1:
            found[origin] = sizes.pop()
    return found


def _conditions(workload: Workload, tokens: int | None) -> tuple[Any, ...]:
    """The value of each of `_CONDITIONS`; None where it follows from others."""
    derived = dict(
        zip(
            _FOLLOWING,
            (workload.heads, workload.keys, workload.head_dim, 1 / math.sqrt(workload.head_dim)),
            strict=True,
        )
    )
    if workload.d_model is not None:
        derived["head_dim"] = workload.d_model // workload.heads
    told = {name: getattr(workload, name) for name in _CONDITIONS}
    if tokens is not None:
        told["batch"] = f"{tokens}/n"
    return tuple(None if derived.get(name) == value else value for name, value in told.items())


def _text(at: int, value: Any) -> str:
    """As in a workload's label; empty at its default."""
    name = _CONDITIONS[at]
    if value is None:
        return ""
    if name in _FOLLOWING:
        return f"{name}={spoken(value)}"
    return in_label(_FIELDS[name], value)
