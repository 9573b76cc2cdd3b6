"""The PyTorch backends: which kernel runs, forced kernels keep the caller's state, declines; PyTorch's own module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every import judged
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.backends.discovery import load
from attnlab.workload.workload import Workload

SMALL = Workload(heads=2, queries=32, keys=32, head_dim=16)


def state() -> list[bool]:
    """Which kernels the dispatcher may choose now."""
    kernels = ("flash", "mem_efficient", "math", "cudnn")
    return [getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in kernels]


@pytest.mark.parametrize(
    ("workload", "kernel"),
    [
        (SMALL, "_scaled_dot_product_flash_attention_for_cpu"),
        (SMALL.with_(value_dim=8), "_scaled_dot_product_attention_math"),
    ],
    ids=["flash", "math"],
)
def test_the_dispatchers_own_choice_is_recorded(workload: Workload, kernel: str) -> None:
    """On the CPU it chooses flash, and math if value_dim differs from head_dim."""
    assert load("torch_sdpa").open("cpu").attest(load("torch_sdpa").bind(workload)) == kernel


@pytest.mark.parametrize("name", ["torch_sdpa_math", "torch_sdpa_flash"])
def test_the_callers_choice_is_overruled_for_the_call_and_kept_after_it(name: str) -> None:
    """If the caller allows only one kernel, the forced one still runs, and the caller's state is kept afterwards."""
    backend = load(name)
    call = backend.bind(SMALL.with_(dtype="float16"))
    for only in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(only):
            before = state()
            seen = backend.open("cpu").attest(call)
            assert state() == before
        assert (backend.kernel or "none") in seen and seen.count("_scaled_dot_product") == 1
    assert state() == [True, True, True, True]


def test_a_kernel_declines_what_it_cannot_do() -> None:
    """The reasons can be understood without knowledge of PyTorch."""
    assert "no cuDNN kernel for the CPU" in str(load("torch_sdpa_cudnn").declines(SMALL))
    capped = SMALL.with_(dtype="float16", softcap=1e8)
    assert "float16 holds no cap of 1e+08" in str(load("torch_eager").declines(capped))


# -- PyTorch's own module


SELF = Workload(batch=2, heads=4, queries=10, keys=10, d_model=32)


@pytest.fixture(autouse=True)
def set_back() -> Iterator[None]:
    """Turn PyTorch's fast path on again: its switch holds for the whole process."""
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def attested(workload: Workload, fastpath: str = "on") -> str:
    """The kernel that ran."""
    backend = load("torch_mha", settings={"fastpath": fastpath})
    return backend.open("cpu").attest(backend.bind(workload))


def test_the_fast_path_is_attested_where_it_ran() -> None:
    """It runs for self-attention with an even number of heads; not with another memory, and not if it is set off."""
    assert attested(SELF) == "_native_multi_head_attention"
    assert "_native" not in attested(SELF.with_(keys=12))
    assert "_native" not in attested(
        SELF.with_(heads=1, head_dim=None, kv_heads=None, value_dim=None, scale=None)
    )
    assert "_scaled_dot_product" in attested(SELF, fastpath="off")


@pytest.mark.parametrize("fastpath", ["on", "off"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"causal": "top_left"},
        {"mask": "prefix(4)"},
        {"window": (2, 1)},
        {"key_lengths": (13, 3), "keys": 13},
        {"bias": "alibi", "keys": 13},
    ],
    ids=str,
)
def test_it_is_right_with_every_mask_that_it_takes(asked: dict[str, Any], fastpath: str) -> None:
    """In masks of the module True hides a key; everywhere else it shows the key."""
    backend, workload = load("torch_mha", settings={"fastpath": fastpath}), SELF.with_(**asked)
    assert backend.declines(workload) is None
    found = judged(backend, workload)
    assert found.passed, found.reason
