"""attnlab: which attention should I run here, how fast, how big, and is it right?

The public names: `compare`, `check`, `backends`, `load`, `attend`, `block`, `gradients`, `observe`, `diagnose`,
`attention_share`, `Workload`, `Backend`, `Plan`, `run`, `read_run`, `Run`, `fastest`, `theory`, and the two honest
refusals, `Declined` and `Unavailable`.
Everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab import theory
    from attnlab.backend.backend import Backend
    from attnlab.backend.call import attend, block, gradients
    from attnlab.backend.discovery import backends, load
    from attnlab.errors import Declined, Unavailable
    from attnlab.experiments.diagnosis import diagnose
    from attnlab.experiments.observables import observe
    from attnlab.experiments.share import attention_share
    from attnlab.problem.workload import Workload
    from attnlab.race.compare import compare
    from attnlab.routing.dispatch import fastest
    from attnlab.runs.check import check
    from attnlab.runs.execute import run
    from attnlab.runs.plan import Plan
    from attnlab.runs.store import Run, read_run

__all__ = ["Backend", "Declined", "Plan", "Run", "Unavailable", "Workload", "attend", "attention_share"]
__all__ += ["backends", "block", "check", "compare", "diagnose", "fastest", "gradients", "load", "observe"]
__all__ += ["read_run", "run", "theory"]
#: where each of them is, but for the package `theory`
_HOMES = {
    "backend.backend": ("Backend",),
    "backend.call": ("attend", "block", "gradients"),
    "backend.discovery": ("backends", "load"),
    "errors": ("Declined", "Unavailable"),
    "experiments.diagnosis": ("diagnose",),
    "experiments.observables": ("observe",),
    "experiments.share": ("attention_share",),
    "problem.workload": ("Workload",),
    "race.compare": ("compare",),
    "routing.dispatch": ("fastest",),
    "runs.check": ("check",),
    "runs.execute": ("run",),
    "runs.plan": ("Plan",),
    "runs.store": ("Run", "read_run"),
}


def __getattr__(name: str) -> Any:
    if name == "theory":
        return importlib.import_module("attnlab.theory")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("attnlab")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"attnlab.{home}"), name)
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
