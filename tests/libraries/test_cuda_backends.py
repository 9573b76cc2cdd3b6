"""Backends on kernels for CUDA: what they hand over, against stand-ins that compute by the packages' documentation.

The stand-ins compute on the CPU. What only a device shows is tested in `test_cuda_logic`, where there is one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import fake_kernels
import pytest
import torch

from attnlab.backend.backend import Backend
from attnlab.backend.discovery import load
from attnlab.errors import Unavailable
from attnlab.gate.gate import Answers, examine
from attnlab.gate.questions import Question
from attnlab.libraries import cuda_kernels
from attnlab.problem.workload import Workload
from attnlab.race.probe import Probe

NAMES = ("flash_attn", "xformers", "flashinfer", "sageattention")
HALF = Workload(heads=4, queries=16, keys=16, head_dim=64, dtype="float16", device="cuda")

Loaded = Callable[[str], tuple[Backend, ModuleType]]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A backend on its stand-in, imported anew, and its file; there is no device to try a call on."""

    def load_on_stand_in(name: str) -> tuple[Backend, ModuleType]:
        made = getattr(fake_kernels, name)()
        for full, one in (made if isinstance(made, dict) else {name: made}).items():
            monkeypatch.setitem(sys.modules, full, one)
        own = f"attnlab.implementations.{name}"
        monkeypatch.delitem(sys.modules, own, raising=False)
        backend = load(name)
        file = importlib.import_module(own)
        monkeypatch.delitem(sys.modules, own)
        monkeypatch.setattr(file, "refusal", lambda attend, workload: None)
        return backend, file

    return load_on_stand_in


class Everything:
    """Holds whatever is asked for, so that small dimensions are computed too."""

    def __contains__(self, one: object) -> bool:
        return True


def on_the_cpu(backend: Backend, file: ModuleType) -> Backend:
    """The backend, which declines as it would on CUDA, and computes here."""
    return replace(backend, own_reason=lambda workload: file.declines(workload.with_(device="cuda")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_all_that_it_does_not_decline_passes_the_gate(
    name: str, dtype: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts, grouped heads, alignments, windows, soft caps, ALiBi, scales of any sign, and gradients."""
    backend, file = loaded(name)
    if name == "flashinfer":
        monkeypatch.setattr(file, "_DIMS", Everything())
    probe = Probe(on_the_cpu(backend, file))

    def ask(question: Question) -> Answers:
        workload = Workload.of_problem(
            question.problem, direction="training" if question.backward else "forward"
        )
        return probe.answer(question.problem, workload, *question.layouts)

    found = examine(ask, dtype, seed=0)
    assert found.fault is None
    if dtype == "float32" and name != "xformers":
        assert not found.asked and "computes in float16 and bfloat16 only" in found.refusal["forward"]
    else:
        assert found.asked > 30


@pytest.mark.parametrize("name", NAMES)
def test_on_the_cpu_it_is_declined(name: str, loaded: Loaded) -> None:
    backend, _ = loaded(name)
    reason = backend.declines(HALF.with_(device="cpu"))
    assert reason is not None and "computes on CUDA only, not on cpu" in reason


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("flash_attn", {"value_dim": 32}, "needs value_dim = head_dim"),
        ("flash_attn", {"head_dim": 288, "value_dim": 288}, "no head_dim above 256"),
        ("flash_attn", {"queries": 32, "causal": "top_left"}, "16 keys or more for no window"),
        ("flash_attn", {"key_lengths": (9,), "direction": "training"}, "has no backward pass"),
        ("flash_attn", {"key_lengths": (9,), "causal": "top_left"}, "to each key length"),
        (
            "flash_attn",
            {"keys": 32, "causal": "top_left", "bias": "alibi"},
            "from the last key that it is given",
        ),
        ("flash_attn", {"queries": 30, "window": (0, -1)}, "bottom-right diagonal"),
        ("xformers", {"head_dim": 60, "value_dim": 60}, "multiples of 8 in float16"),
        ("xformers", {"head_dim": 62, "value_dim": 62, "dtype": "float32"}, "multiples of 4 in float32"),
        ("xformers", {"dtype": "float64"}, "not in float64"),
        ("xformers", {"window": (3, 3), "dtype": "float32"}, "flash kernels alone"),
        ("flashinfer", {"head_dim": 80, "value_dim": 80}, "64, 128, 192/128, 256, got 80/80"),
        ("flashinfer", {"window": (3, 3)}, "causal mask and left window"),
        ("flashinfer", {"direction": "training"}, "has no backward pass"),
        ("sageattention", {"head_dim": 192, "value_dim": 192}, "no head_dim above 128"),
        ("sageattention", {"keys": 32, "causal": "top_left"}, "as many queries as keys"),
        ("sageattention", {"direction": "backward"}, "has no backward pass"),
    ],
)
def test_what_its_kernels_lack_is_declined_with_the_reason(
    name: str, asked: dict[str, Any], reason: str, loaded: Loaded
) -> None:
    _, file = loaded(name)
    said = file.declines(HALF.with_(**asked))
    assert said is not None and reason in said
    assert file.declines(HALF) is None


@pytest.mark.parametrize("name", ["flash_attn", "sageattention"])
def test_no_array_is_copied_on_its_way_to_the_kernel(
    name: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either layout."""
    _, file = loaded(name)
    places: list[int] = []
    kernel = getattr(file, name)
    function = "flash_attn_func" if name == "flash_attn" else "sageattn"
    inner = getattr(kernel, function)

    def watched(*arrays: torch.Tensor, **asked: Any) -> torch.Tensor:
        places.extend(one.data_ptr() for one in arrays)
        return inner(*arrays, **asked)

    monkeypatch.setattr(kernel, function, watched)
    arrays = [torch.randn(2, 4, 16, 64, dtype=torch.float16) for _ in range(3)]
    apart = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in arrays]
    for given in (arrays, apart):
        places.clear()
        file.attend(*given, scale=0.125)
        assert places == [one.data_ptr() for one in given]


def test_flashinfer_plans_when_a_workload_is_bound(loaded: Loaded) -> None:
    """And not on the clock; its arrays lie as it wants them then."""
    backend, file = loaded("flashinfer")
    workload = HALF.with_(device="cpu", causal="bottom_right", batch=2, scale=-0.1, softcap=5.0)
    call = on_the_cpu(backend, file).bind(workload)
    before = file._planned.cache_info().misses
    call()
    assert file._planned.cache_info().misses == before == 1


def test_an_old_version_is_unavailable(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose causal mask would be another one."""
    old: Any = fake_kernels.flash_attn()
    old.__version__ = "2.0.9.post1"
    monkeypatch.setattr(fake_kernels, "flash_attn", lambda: old)
    with pytest.raises(
        Unavailable, match=r"flash_attn 2.0.9.post1 is too old: .*; pip install 'flash_attn>=2.6'"
    ):
        loaded("flash_attn")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, which refuses nothing here")
def test_what_the_device_says_is_the_reason() -> None:
    """Found by trying, in one line."""

    def attend(*arrays: Any, **asked: Any) -> Any:
        raise AssertionError("never reached: there is no device")

    said = cuda_kernels.refusal(attend, HALF)
    assert said is not None and said.startswith("on this device it says: ") and "\n" not in said
