"""Backends: what they are, how they are found, set and called; the libraries of arrays behind them.

The package can be called itself, as ``attnlab.backends`` names a function too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class _Callable(ModuleType):
    """``attnlab.backends()`` is `attnlab.backends.discovery.backends`, whatever was imported before."""

    def __call__(self, folders: Sequence[Path | str] = ()) -> list[str]:
        from attnlab.backends.discovery import backends

        return backends(folders)


sys.modules[__name__].__class__ = _Callable
