"""attnlab: which attention should I run here, how fast, how big, and is it right?

The public face: `backends`, `load`, `attend`, `gradients`, `observe`, `Workload`, `Backend`, `Plan`, `run`,
`read_run`, `Run`, `theory`, and the two honest refusals, `Declined` and `Unavailable`. Everything is imported when
it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab import theory
    from attnlab.calling import attend, gradients
    from attnlab.discovery import backends, load
    from attnlab.ground.backend import Backend
    from attnlab.ground.errors import Declined, Unavailable
    from attnlab.ground.workload import Workload
    from attnlab.numerics.observables import observe
    from attnlab.plan import Plan
    from attnlab.run_folder import Run, read_run
    from attnlab.running import run

_HOMES = {
    "Backend": "attnlab.ground.backend",
    "Declined": "attnlab.ground.errors",
    "Plan": "attnlab.plan",
    "Run": "attnlab.run_folder",
    "Unavailable": "attnlab.ground.errors",
    "Workload": "attnlab.ground.workload",
    "attend": "attnlab.calling",
    "gradients": "attnlab.calling",
    "backends": "attnlab.discovery",
    "load": "attnlab.discovery",
    "observe": "attnlab.numerics.observables",
    "read_run": "attnlab.run_folder",
    "run": "attnlab.running",
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
