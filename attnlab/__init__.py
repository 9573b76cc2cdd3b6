"""attnlab: which attention should I run here, how fast, how big, and is it right?

The public face: `backends`, `load`, `attend`, `block`, `gradients`, `observe`, `diagnose`, `Workload`, `Backend`,
`Plan`, `run`, `read_run`, `Run`, `fastest`, `theory`, and the two honest refusals, `Declined` and `Unavailable`.
Everything
is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab import theory
    from attnlab.backends.backend import Backend
    from attnlab.backends.call import attend, block, gradients
    from attnlab.backends.discovery import backends, load
    from attnlab.errors import Declined, Unavailable
    from attnlab.experiments.diagnosis import diagnose
    from attnlab.experiments.observables import observe
    from attnlab.problem.workload import Workload
    from attnlab.routing.dispatch import fastest
    from attnlab.runs.execute import run
    from attnlab.runs.plan import Plan
    from attnlab.runs.store import Run, read_run

_HOMES = {
    "Backend": "attnlab.backends.backend",
    "Declined": "attnlab.errors",
    "Plan": "attnlab.runs.plan",
    "Run": "attnlab.runs.store",
    "Unavailable": "attnlab.errors",
    "Workload": "attnlab.problem.workload",
    "attend": "attnlab.backends.call",
    "block": "attnlab.backends.call",
    "gradients": "attnlab.backends.call",
    "backends": "attnlab.backends.discovery",
    "fastest": "attnlab.routing.dispatch",
    "diagnose": "attnlab.experiments.diagnosis",
    "load": "attnlab.backends.discovery",
    "observe": "attnlab.experiments.observables",
    "read_run": "attnlab.runs.store",
    "run": "attnlab.runs.execute",
}

__all__ = [
    "Backend",
    "Declined",
    "Plan",
    "Run",
    "Unavailable",
    "Workload",
    "attend",
    "backends",
    "block",
    "diagnose",
    "fastest",
    "gradients",
    "load",
    "observe",
    "read_run",
    "run",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return importlib.import_module("attnlab.theory")
    if name not in _HOMES:
        raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
