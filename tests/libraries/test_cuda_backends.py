"""Backends on CUDA kernels: what they pass to them, tested with stand-ins that follow the packages' documentation.

The stand-ins compute on the CPU. `test_on_cuda` tests what only a device shows.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import fake_kernels
import pytest

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import load
from attnlab.correctness.answering import Probe
from attnlab.correctness.check import examine
from attnlab.workload.workload import Workload

NAMES = ("flash_attn", "xformers", "flashinfer", "sageattention")
HALF = Workload(heads=4, queries=16, keys=16, head_dim=64, dtype="float16", device="cuda")

Loaded = Callable[[str], tuple[Backend, ModuleType]]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A function that imports a backend anew on its stand-in: the backend and its module. No device call is tried."""

    def load_on_stand_in(name: str) -> tuple[Backend, ModuleType]:
        made = getattr(fake_kernels, name)()
        for full, one in (made if isinstance(made, dict) else {name: made}).items():
            monkeypatch.setitem(sys.modules, full, one)
        own = f"attnlab.implementations.{name}"
        monkeypatch.delitem(sys.modules, own, raising=False)
        backend = load(name)
        file = importlib.import_module(own)
        del sys.modules[own]
        monkeypatch.setattr(file, "refusal", lambda attend, workload: None)
        return backend, file

    return load_on_stand_in


class Everything:
    """Contains everything, so that small dimensions are computed too."""

    def __contains__(self, one: object) -> bool:
        return True


def on_the_cpu(backend: Backend, file: ModuleType) -> Backend:
    """The backend, which declines as on CUDA, but computes on the CPU."""
    return replace(backend, own_reason=lambda workload: file.declines(workload.with_(device="cuda")))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_all_that_it_does_not_decline_passes_the_gate(name, dtype, loaded, monkeypatch) -> None:
    """Layouts, grouped heads, alignments, windows, soft caps, ALiBi, scales of any sign, and gradients."""
    backend, file = loaded(name)
    if name == "flashinfer":
        monkeypatch.setattr(file, "_DIMS", Everything())
    probe = Probe(on_the_cpu(backend, file))
    found = examine(lambda one: probe.answer(one.inputs, one.workload, *one.layouts), dtype, daily=True)
    assert found.fault is None
    if dtype == "float32" and name != "xformers":
        assert not found.asked and "computes in float16 and bfloat16 only" in found.refusal["forward"]
    else:
        assert found.asked > 30


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("flash_attn", {"queries": 32, "causal": "top_left"}, "16 keys or more for no window"),
        ("flash_attn", {"key_lengths": (9,), "causal": "top_left"}, "to each key length"),
        ("xformers", {"head_dim": 60, "value_dim": 60}, "multiples of 8 in float16"),
        ("flashinfer", {"head_dim": 80, "value_dim": 80}, "64, 128, 192/128, 256, got 80/80"),
        ("sageattention", {"keys": 32, "causal": "top_left"}, "as many queries as keys"),
    ],
)
def test_what_its_kernels_lack_is_declined_with_the_reason(name, asked, reason, loaded) -> None:
    _, file = loaded(name)
    said = file.declines(HALF.with_(**asked))
    assert said is not None and reason in said[1]
    assert file.declines(HALF) is None
