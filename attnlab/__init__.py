"""attnlab: which attention should I run here, how fast, how big, and is it right?

The public names are those in `__all__`; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.backends.attend import attend, block, gradients
    from attnlab.backends.backend import Backend
    from attnlab.backends.discovery import backends, load
    from attnlab.correctness.check import check
    from attnlab.errors import Declined, Unavailable
    from attnlab.fastest import fastest
    from attnlab.judge.judging import judge
    from attnlab.lab import diagnose, theory
    from attnlab.lab.observables import observe
    from attnlab.race.compare import compare
    from attnlab.runs.execute import run
    from attnlab.runs.plan import Plan
    from attnlab.runs.store import Run, read_run
    from attnlab.workload.workload import Workload

__all__ = ["Backend", "Declined", "Plan", "Run", "Unavailable", "Workload", "attend"]
__all__ += ["backends", "block", "check", "compare", "diagnose", "fastest", "gradients", "judge", "load"]
__all__ += ["observe", "read_run", "run", "theory"]
#: the module of each public name
_HOMES = {
    "backends.backend": ("Backend",),
    "backends.attend": ("attend", "block", "gradients"),
    "backends.discovery": ("backends", "load"),
    "errors": ("Declined", "Unavailable"),
    "fastest": ("fastest",),
    "judge.judging": ("judge",),
    "lab": ("diagnose", "theory"),
    "lab.observables": ("observe",),
    "workload.workload": ("Workload",),
    "race.compare": ("compare",),
    "correctness.check": ("check",),
    "runs.execute": ("run",),
    "runs.plan": ("Plan",),
    "runs.store": ("Run", "read_run"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("attnlab")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"attnlab.{home}"), name)
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Face(ModuleType):
    """Keeps the functions `backends`, `fastest` and `judge`, although packages and a module have these names too.

    Python would otherwise replace the function when the package or module is imported.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in __all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
