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
    from attnlab.contract.backend import Backend
    from attnlab.contract.discovery import backends, load
    from attnlab.contract.errors import Declined, Unavailable
    from attnlab.contract.workload import Workload
    from attnlab.diagnosis.diagnosis import diagnose
    from attnlab.numerics.observables import observe
    from attnlab.program.call import attend, block, gradients
    from attnlab.program.execute import run
    from attnlab.program.plan import Plan
    from attnlab.program.store import Run, read_run
    from attnlab.routing.dispatch import fastest

_HOMES = {
    "Backend": "attnlab.contract.backend",
    "Declined": "attnlab.contract.errors",
    "Plan": "attnlab.program.plan",
    "Run": "attnlab.program.store",
    "Unavailable": "attnlab.contract.errors",
    "Workload": "attnlab.contract.workload",
    "attend": "attnlab.program.call",
    "block": "attnlab.program.call",
    "gradients": "attnlab.program.call",
    "backends": "attnlab.contract.discovery",
    "fastest": "attnlab.routing.dispatch",
    "diagnose": "attnlab.diagnosis.diagnosis",
    "load": "attnlab.contract.discovery",
    "observe": "attnlab.numerics.observables",
    "read_run": "attnlab.program.store",
    "run": "attnlab.program.execute",
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
