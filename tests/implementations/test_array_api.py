"""One formula, several libraries: `array_api` on the arrays of each, weighed against its budgets."""

from __future__ import annotations

import pytest
from every import here

from attnlab.backends import keywords
from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import weigh
from attnlab.errors import Unavailable
from attnlab.libraries.library import open_library
from attnlab.workload.drawing import inputs_of
from attnlab.workload.workload import OUTPUT, Workload

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


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_the_formula_is_right_on_the_arrays_of_each_library(name: str) -> None:
    """And its answer is an array of that library, in the same dtype."""
    backend, problem = here("array_api"), inputs_of(EVERYTHING)
    try:
        library = open_library(name)
    except Unavailable as missing:
        pytest.skip(str(missing))
    options = keywords.given(problem, backend.options, library, "float32")
    arrays = (library.from_numpy(one, "float32") for one in (problem.query, problem.key, problem.value))
    found = backend.attend(*arrays, **options)
    assert library.dtype_of(found) == "float32"
    assert weigh(expect(problem)[OUTPUT], library.to_numpy(found), directions=None).passed


def test_a_setting_says_whose_arrays() -> None:
    """With gradients, where that library has them."""
    workload = EVERYTHING.with_(direction="training", causal=False, key_lengths=None)
    backend = here("array_api", settings={"arrays": "torch"})
    assert backend.library == "torch"
    found = backend.named(workload, backend.bind(workload)())
    for name, reference in expect(inputs_of(workload)).items():
        assert weigh(reference, found[name], directions=None).passed, name
