"""One formula, several libraries: `array_api` on the arrays of each, held against the exact answer and its budgets."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from hypothesis import HealthCheck, assume, given, settings
from strategies import workloads

from attnlab.backend import keywords
from attnlab.backend.discovery import load
from attnlab.backend.library import Library, array_type, open_library
from attnlab.errors import Declined, Unavailable
from attnlab.gate.evidence import weigh
from attnlab.gate.reference import refer
from attnlab.problem.directions import OUTPUT
from attnlab.problem.inputs import problem_of
from attnlab.problem.workload import Workload

#: all that the formula takes, at once
EVERYTHING = Workload(
    batch=2,
    heads=4,
    kv_heads=2,
    queries=5,
    keys=9,
    head_dim=4,
    value_dim=6,
    causal="bottom_right",
    window=(3, 0),
    key_lengths=(9, 0),
    bias="normal",
    softcap=2.0,
    sinks=True,
    scale=0.7,
)


def library_of(name: str) -> Library:
    """That library, or the test is skipped."""
    try:
        return open_library(name)
    except Unavailable as missing:
        pytest.skip(str(missing))


def formula() -> ModuleType:
    """The file of the backend."""
    try:
        load("array_api")
    except Unavailable as missing:
        pytest.skip(str(missing))
    return importlib.import_module("attnlab.implementations.array_api")


def held(name: str, workload: Workload) -> None:
    """The formula's answer on arrays of that library is of that library, and right."""
    backend, library = load("array_api"), library_of(name)
    asked = workload.with_(device="cpu", direction="forward")
    problem = problem_of(asked)
    options = keywords.given(problem, backend.options, library, asked.dtype)
    arrays = (library.from_numpy(one, asked.dtype) for one in (problem.query, problem.key, problem.value))
    found = backend.attend(*arrays, **options)
    assert isinstance(found, array_type(library))
    assert library.dtype_of(found) == asked.dtype
    reference = refer(problem)[OUTPUT]
    assert weigh(reference, library.to_numpy(found), directions=None).fault is None


def within_reason(workload: Workload) -> bool:
    """Neither scale nor cap is a number whose square no format holds: the budgets square them."""
    numbers = [one for one in (workload.scale, workload.softcap) if one]
    return all(1e-4 < abs(one) < 1e4 for one in numbers)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_the_formula_is_right_on_the_arrays_of_each_library(name: str) -> None:
    """Any workload that can be written down, but for extreme scales, within the error budget of the project."""
    formula()
    library = library_of(name)

    # every new shape is compiled for by XLA, operation by operation
    @settings(max_examples=3 if name == "jax" else 40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(workload=workloads())
    def whatever_is_asked(workload: Workload) -> None:
        assume(library.declines(workload.dtype) is None and within_reason(workload))
        try:
            held(name, workload)
        except Declined:  # the dtype does not hold what was drawn
            assume(False)

    whatever_is_asked()


def test_a_setting_says_whose_arrays() -> None:
    """The first is the default, and each is a library that there is a file for, or not yet."""
    module = formula()
    assert module.SETTINGS["arrays"][0] == module.LIBRARY == load("array_api").library
    workload = EVERYTHING.with_(direction="training", causal=False, key_lengths=None)
    backend = load("array_api", settings={"arrays": "torch"})
    assert backend.library == "torch"
    found = backend.named(workload, backend.bind(workload)())
    problem = problem_of(workload)
    for name, reference in refer(problem).items():
        assert weigh(reference, found[name], directions=None).fault is None, name
