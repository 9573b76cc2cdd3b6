"""The PyTorch backends: which kernel runs, that forcing leaves no trace, why one cannot, its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.backend.discovery import load
from attnlab.problem.workload import Workload

SMALL = Workload(heads=2, queries=32, keys=32, head_dim=16)


def bound_call(name: str, workload: Workload) -> Any:
    """The backend's call."""
    return load(name).bind(workload)


def state() -> list[bool]:
    """Which kernels the dispatcher may choose now."""
    cuda = torch.backends.cuda
    return [
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    ]


@pytest.mark.parametrize("name", ["torch_sdpa_math", "torch_sdpa_flash"])
def test_the_forced_kernel_is_seen_running(name: str) -> None:
    """The profiler records KERNEL, and no other fused kernel; on CUDA see `test_on_cuda`."""
    seen = load(name).open("cpu").attest(bound_call(name, SMALL.with_(dtype="float16")))
    kernel = load(name).kernel
    assert kernel is not None and kernel in seen
    assert seen.count("_scaled_dot_product") == 1


@pytest.mark.parametrize(
    ("workload", "kernel"),
    [
        (SMALL, "_scaled_dot_product_flash_attention_for_cpu"),
        (SMALL.with_(value_dim=8), "_scaled_dot_product_attention_math"),
    ],
    ids=["flash", "math"],
)
def test_the_dispatchers_own_choice_is_recorded(workload: Workload, kernel: str) -> None:
    """On the CPU it picks flash, and math where value_dim differs from head_dim."""
    assert load("torch_sdpa").open("cpu").attest(bound_call("torch_sdpa", workload)) == kernel


@pytest.mark.parametrize("name", ["torch_sdpa_math", "torch_sdpa_flash"])
def test_the_callers_choice_is_overruled_for_the_call_and_kept_after_it(name: str) -> None:
    """A caller who allows one kernel only gets the forced one inside, and has the old state afterwards."""
    call = bound_call(name, SMALL)
    for only in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(only):
            before = state()
            seen = load(name).open("cpu").attest(call)
            assert state() == before
        assert (load(name).kernel or "none") in seen
    assert state() == [True, True, True, True]


@pytest.mark.parametrize(
    ("name", "workload", "reason"),
    [
        (
            "torch_sdpa_efficient",
            SMALL,
            "PyTorch has no memory-efficient kernel for the CPU; it runs on CUDA only",
        ),
        ("torch_sdpa_cudnn", SMALL, "PyTorch has no cuDNN kernel for the CPU; it runs on CUDA only"),
        (
            "torch_sdpa_flash",
            SMALL.with_(value_dim=8),
            "the flash kernel needs value_dim = head_dim, got value_dim 8 and head_dim 16",
        ),
        ("torch_sdpa_flash", SMALL.with_(causal=True, keys=9), None),
        ("torch_sdpa_math", SMALL.with_(value_dim=8), None),
        ("torch_sdpa", SMALL.with_(value_dim=8), None),
    ],
)
def test_a_kernel_declines_what_it_cannot_do(name: str, workload: Workload, reason: str | None) -> None:
    """On the CPU, in words that need no knowledge of PyTorch."""
    assert load(name).declines(workload) == reason
