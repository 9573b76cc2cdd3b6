"""The pytest plugin under its former name; new code loads ``-p attnlab.pytest_plugin.plugin``."""

from __future__ import annotations

import importlib
from typing import Any

pytest_plugins = ["attnlab.pytest_plugin.plugin"]


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("attnlab.pytest_plugin.plugin"), name)
