"""The backends that tests of all backends go through."""

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

#: how a file asks for the modules that it needs, and says whose arrays it takes
_NEEDS = re.compile(r'required\(((?:"[\w.]+"(?:, )?)+)')
_LIBRARY = re.compile(r'^LIBRARY = "(\w+)"$', re.MULTILINE)


def every() -> list[str]:
    """All that come with attnlab and whose library is here; what compiles at every shape has tests of its own."""
    return [name for name in installed(*backends()) if compiles_often(name) is None]


def installed(*names: str) -> list[str]:
    """Those of these backends whose library is here."""
    return [name for name in names if lacking(name) is None]


def here(name: str, **options: Any) -> Backend:
    """The backend, loaded; a test that needs one that cannot be had is skipped, with the reason."""
    try:
        return load(name, **options)
    except Unavailable as missing:
        pytest.skip(str(missing))


def judged(one: Backend, workload: Workload, **how: Any) -> Accuracy:
    """Its answer before the clock, as a race judges it."""
    rows = weighing.sampled_rows(workload, np.random.default_rng())
    inputs = inputs_of(workload, rows)
    answers = one.named(workload, one.bind(workload, inputs, **how)())
    return weighing.judge(workload, inputs, rows, answers, one.computes_in)


def library_of(name: str) -> str:
    """The library of a backend, by its text."""
    found = _LIBRARY.search(_text(name))
    assert found is not None, name
    return found[1]


def lacking(name: str) -> str | None:
    """The module that a backend needs and that is not installed; nothing is imported to tell it."""
    asked = " ".join(_NEEDS.findall(_text(name)))
    needed = [one.partition(".")[0] for one in libraries()[library_of(name)].modules]
    needed += re.findall(r'"(\w+)', asked)
    return next((one for one in needed if importlib.util.find_spec(one) is None), None)


def _text(name: str) -> str:
    return (Path(attnlab.implementations.__path__[0]) / f"{name}.py").read_text(encoding="utf-8")
