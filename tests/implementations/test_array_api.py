"""One formula, several libraries: `array_api` on the arrays of each, compared with the error budgets."""

from __future__ import annotations

import pytest
from every import here

from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import weigh
from attnlab.errors import Unavailable
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.workload import Workload

#: nearly every feature of the formula at once; gradients of a query without keys would be declined
SIZES = Workload(batch=2, heads=4, kv_heads=2, queries=5, keys=9, head_dim=4, value_dim=6)
EVERYTHING = SIZES.with_(window=(3, 0), bias="normal", softcap=2.0, sinks=True, scale=0.7)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_the_formula_is_right_on_the_arrays_of_each_library(name: str) -> None:
    """The setting `arrays` names the library. Gradients are tested if the library has them."""
    backend = here("array_api", settings={"arrays": name})
    try:
        differentiates = backend.open("cpu").without_gradients is None
    except Unavailable as missing:
        pytest.skip(str(missing))
    changes = {"direction": "training"} if differentiates else {"key_lengths": (9, 0)}
    workload = EVERYTHING.with_(**changes)
    found = backend.named(workload, backend.bind(workload)())
    for what, expected in expect(inputs_of(workload)).items():
        assert weigh(expected, found[what], directions=None).passed, what
