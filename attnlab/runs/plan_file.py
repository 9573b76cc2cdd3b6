"""A plan as the text of a plan file: the inverse of `attnlab.runs.plan.read_plan`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.problem.workload import Workload
from attnlab.race.limits import Limits
from attnlab.runs.plan import Plan

#: what a workload is where a file says nothing of it
_DEFAULTS = {one.name: one.default for one in dataclasses.fields(Workload)}


def plan_text(plan: Plan) -> str:
    """TOML that `attnlab run --plan` reads as this very plan, its workloads listed one by one.

    Folders of backends are written as absolute paths, so that the file may lie anywhere.
    """
    lines = [f"backends = {_value(plan.contenders)}"] if plan.contenders else []
    lines += [f"baseline = {_value(plan.baseline)}"] if plan.baseline is not None else []
    if plan.folders:
        lines.append(f"implementations = {_value([str(Path(one).resolve()) for one in plan.folders])}")
    lines += [f"{name} = {_value(getattr(plan, name))}" for name in ("self_test", "memory", "ceilings")]
    lines.append(f"experiments = {_value(plan.experiments or ('none',))}")
    if plan.origins:
        lines.append(f"origins = {_value(plan.origins)}")
    lines += ["", "[limits]"]
    lines += [f"{one.name} = {_value(getattr(plan.limits, one.name))}" for one in dataclasses.fields(Limits)]
    for workload in plan.workloads:
        lines += ["", "[[workloads]]", *(f"{name} = {_value(one)}" for name, one in _told(workload).items())]
    return "\n".join(lines) + "\n"


def _told(workload: Workload) -> Mapping[str, Any]:
    return {
        name: one
        for name in _DEFAULTS
        if (one := getattr(workload, name)) is not None and one != _DEFAULTS[name]
    }


def _value(value: Any) -> str:
    """A value in TOML: numbers and lists are as in JSON, and a text is with its letters as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
