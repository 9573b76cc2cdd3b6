"""Workloads in groups that differ in heads and length only, and what tells a group from the others, in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from attnlab.text import counted
from attnlab.workload.declaring import in_label, spoken
from attnlab.workload.vocabulary import CONTIGUOUS, STORAGES
from attnlab.workload.workload import Workload

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
    "seed": "seed 0",
}


def grouped(asked: Mapping[Workload, str]) -> tuple[str, list[tuple[str, list[Workload]]]]:
    """What all workloads share, heads and length apart, in words, and the groups of those that share everything else.

    asked : by workload the parts of presets that asked for it, between commas, or "". A group's name says what tells it
    from the others, those parts first; it is empty where there is one group. Where the batch follows from the length
    (so many tokens in all), it does not part them.
    """
    found: dict[tuple[tuple[str, Any], ...], list[Workload]] = {}
    tokens = _tokens(asked)
    for workload, origin in asked.items():
        found.setdefault(tuple(conditions(workload, tokens.get(origin)).items()), []).append(workload)
    common = next(iter(found), ())
    differing = {name for key in found for name, value in key if value != dict(common)[name]}
    groups = []
    for key, members in found.items():
        name = _name(key, differing)
        paths = dict.fromkeys(path for one in members for path in asked[one].split(", ") if path)
        if len(found) > 1 and paths:
            name = ": ".join(filter(None, (", ".join(paths), name)))
        groups.append((name, members))
    shared = ", ".join(filter(None, (condition(*one) for one in common if one[0] not in differing)))
    return shared, groups


def _tokens(asked: Mapping[Workload, str]) -> dict[str, int]:
    """By origin, how many tokens each of its workloads has, where their batches differ and this does not."""
    found = {}
    for origin in set(asked.values()) - {""}:
        mine = [workload for workload, path in asked.items() if path == origin]
        sizes = {workload.batch * workload.keys for workload in mine}
        if len(sizes) == 1 and len({workload.batch for workload in mine}) > 1:
            found[origin] = sizes.pop()
    return found


def _name(key: Iterable[tuple[str, Any]], differing: Collection[str]) -> str:
    """What tells a group from the others: what is not at its default, or else every default of what differs."""
    mine = [(name, value) for name, value in key if name in differing]
    said = [text for name, value in mine if (text := condition(name, value))]
    if said and ("direction", "forward") in mine:
        said.append("forward")
    return ", ".join(said or (condition(name, value, always=True) for name, value in mine))


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


def place_text(workload: Workload) -> str:
    """Where a workload stands in its group: ``n = 256, 4 heads``."""
    return f"n = {workload.keys}, {counted(workload.heads, 'head')}"
