"""What torch.compile makes: what really runs, that nothing is compiled twice, and what is said without a compiler."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.workload.workload import Workload

COMPILED = ("torch_compile", "torch_flex")
SMALL = Workload(heads=2, queries=32, keys=32, head_dim=16)


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    """Without one they are unavailable, and say why."""
    try:
        for name in COMPILED:
            load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))


def compiled_so_far() -> int:
    """Graphs that TorchDynamo has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("name", COMPILED)
def test_without_a_compiler_it_is_unavailable_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}")
    with pytest.raises(
        Unavailable, match=r"a C\+\+ compiler, and g\+\+ is not there; install g\+\+, or set CXX$"
    ):
        load(name)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler is not there"):
        load(name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "_scaled_dot_product_flash_attention_for_cpu, called by Inductor"),
        ({"queries": 300, "keys": 300}, "_scaled_dot_product_flash_attention_for_cpu, called by Inductor"),
        ({"softcap": 5.0}, "bmm + loops of Inductor"),
    ],
    ids=["shapes left open", "for its own shapes", "not recognised"],
)
def test_what_inductor_makes_of_the_formula_is_attested(changes: dict[str, Any], kernel: str) -> None:
    """The fused kernel where it recognises attention, else matrix products and loops of its own."""
    backend = load("torch_compile")
    call = backend.bind(SMALL.with_(**changes))
    call()
    assert backend.open("cpu").attest(call) == kernel


@pytest.mark.thorough
def test_keys_that_flex_attention_reads_past_are_declined_as_long_as_it_does() -> None:
    """Arrays lie between NaN, so that it shows. Where this fails on AVX2, PyTorch is mended: decline no more."""
    backend, workload = load("torch_flex"), SMALL.with_(queries=8, keys=8)
    if backend.declines(workload) is None:
        pytest.skip("it is right here")
    assert replace(backend, own_reason=None).bind(workload)().isnan().any()


@pytest.mark.thorough
@pytest.mark.parametrize("length", [32, 300])
@pytest.mark.parametrize("name", COMPILED)
def test_arrays_that_lie_elsewhere_are_not_compiled_for_again(name: str, length: int) -> None:
    """As where a race places them anew, also with a mask that has to be given as an array."""
    workload = SMALL.with_(queries=length, keys=length, mask="random(0.5)")
    load(name).bind(workload)()
    before = compiled_so_far()
    for _ in range(3):
        load(name).bind(workload)()
    assert compiled_so_far() == before


@pytest.mark.thorough
def test_more_kinds_of_calls_than_torch_compile_keeps_are_all_compiled() -> None:
    """Eight are its limit, after which it would run the function as it is, and say nothing."""
    before = compiled_so_far()
    for at in range(10):
        workload = SMALL.with_(scale=2.0 + at / 8)
        found = load("torch_compile").bind(workload)()
        expected = load("torch_eager").bind(workload)()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert compiled_so_far() - before == 10


@pytest.mark.thorough
def test_gradients_alone_are_declined_and_a_training_step_is_not() -> None:
    """PyTorch refuses a second backward pass through memory that the first one gave up."""
    backend = load("torch_compile")
    reason = backend.declines(SMALL.with_(direction="backward"))
    assert reason is not None and "training can" in reason.reason
    workload = SMALL.with_(direction="training")
    call = backend.bind(workload)
    for found in (call(), call()):
        for one, right in zip(found, load("torch_eager").bind(workload)(), strict=True):
            np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-5)
