"""Backends that use torch.compile: nothing is compiled twice, and a missing compiler is reported."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.workload.workload import Workload

COMPILED = ("torch_compile", "torch_flex")
SMALL = Workload(heads=2, queries=32, keys=32, head_dim=16)


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    """Without a compiler the backends are unavailable, and the tests are skipped with the reason."""
    try:
        for name in COMPILED:
            load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))


def compiled_so_far() -> int:
    """Graphs that TorchDynamo has compiled in this process."""
    from torch._dynamo.utils import counters  # at the top it would cost seconds in every test process

    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("name", COMPILED)
def test_without_a_compiler_it_is_unavailable_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}")
    with pytest.raises(Unavailable, match=r"compiler, and g\+\+ is not there; install g\+\+, or set CXX$"):
        load(name)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler is not there"):
        load(name)


@pytest.mark.thorough
def test_keys_that_flex_attention_reads_past_are_declined_as_long_as_it_does() -> None:
    """Arrays lie between NaN, so that it shows. If this fails on AVX2, PyTorch is fixed: remove the decline."""
    backend, workload = load("torch_flex"), SMALL.with_(queries=8, keys=8)
    if backend.declines(workload) is None:
        pytest.skip("it is right here")
    assert replace(backend, own_reason=None).bind(workload)().isnan().any()


@pytest.mark.thorough
@pytest.mark.parametrize("length", [32, 300])
@pytest.mark.parametrize("name", COMPILED)
def test_arrays_that_lie_elsewhere_are_not_compiled_for_again(name: str, length: int) -> None:
    """A race places arrays anew. This holds also with a mask that is passed as an array."""
    workload = SMALL.with_(queries=length, keys=length, mask="random(0.5)")
    load(name).bind(workload)()
    before = compiled_so_far()
    for _ in range(3):
        load(name).bind(workload)()
    assert compiled_so_far() == before
