"""The backends for tests that run with all backends."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnlab.implementations
from attnlab.backends.backend import Backend
from attnlab.backends.discovery import backends, compiles_often, load
from attnlab.correctness import weighing
from attnlab.errors import Unavailable
from attnlab.libraries.library import libraries
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.result import Accuracy
from attnlab.workload.workload import Workload

#: how a backend's file names the modules that it needs, and the library whose arrays it takes
_NEEDS = re.compile(r'required\(((?:"[\w.]+"(?:, )?)+)')
_LIBRARY = re.compile(r'^LIBRARY = "(\w+)"$', re.MULTILINE)


def every() -> list[str]:
    """The backends of attnlab whose library is installed. Those that compile for every shape have their own tests."""
    return [name for name in installed(*backends()) if compiles_often(name) is None]


def installed(*names: str) -> list[str]:
    """Those of the backends `names` whose library is installed."""
    return [name for name in names if lacking(name) is None]


def here(name: str, **options: Any) -> Backend:
    """Load a backend. If it is unavailable, the test is skipped with the reason."""
    try:
        return load(name, **options)
    except Unavailable as missing:
        pytest.skip(str(missing))


def judged(one: Backend, workload: Workload, **how: Any) -> Accuracy:
    """The accuracy of a backend's answer, judged as a race does before timing."""
    rows = weighing.sampled_rows(workload, np.random.default_rng())
    inputs = inputs_of(workload, rows)
    answers = one.named(workload, one.bind(workload, inputs, **how)())
    return weighing.judge(workload, inputs, rows, answers, one.computes_in)


def library_of(name: str) -> str:
    """The library of a backend, read from its file."""
    found = _LIBRARY.search(_text(name))
    assert found is not None, name
    return found[1]


def lacking(name: str) -> str | None:
    """A module that a backend needs and that is not installed, or None. Nothing is imported to find it."""
    asked = " ".join(_NEEDS.findall(_text(name)))
    needed = [one.partition(".")[0] for one in libraries()[library_of(name)].modules]
    needed += re.findall(r'"(\w+)', asked)
    return next((one for one in needed if importlib.util.find_spec(one) is None), None)


def _text(name: str) -> str:
    return (Path(attnlab.implementations.__path__[0]) / f"{name}.py").read_text(encoding="utf-8")
