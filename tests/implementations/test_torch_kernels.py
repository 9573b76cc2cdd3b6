"""The PyTorch backends: which kernel runs, that forcing leaves no trace, why one cannot, its memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.backends.discovery import load
from attnlab.workload.workload import Workload

SMALL = Workload(heads=2, queries=32, keys=32, head_dim=16)


def state() -> list[bool]:
    """Which kernels the dispatcher may choose now."""
    cuda = torch.backends.cuda
    return [
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    ]


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
    assert load("torch_sdpa").open("cpu").attest(load("torch_sdpa").bind(workload)) == kernel


@pytest.mark.parametrize("name", ["torch_sdpa_math", "torch_sdpa_flash"])
def test_the_callers_choice_is_overruled_for_the_call_and_kept_after_it(name: str) -> None:
    """A caller who allows one kernel only gets the forced one inside, and has the old state afterwards."""
    backend = load(name)
    call = backend.bind(SMALL.with_(dtype="float16"))
    for only in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(only):
            before = state()
            seen = backend.open("cpu").attest(call)
            assert state() == before
        assert (backend.kernel or "none") in seen and seen.count("_scaled_dot_product") == 1
    assert state() == [True, True, True, True]


@pytest.mark.parametrize(
    ("name", "workload", "reason"),
    [
        ("torch_sdpa_efficient", SMALL, "no memory-efficient kernel for the CPU"),
        ("torch_sdpa_cudnn", SMALL, "no cuDNN kernel for the CPU"),
        ("torch_sdpa_flash", SMALL.with_(value_dim=8), "needs value_dim = head_dim, got value_dim 8"),
        ("torch_sdpa_flash", SMALL.with_(causal=True, keys=9), None),
        ("torch_sdpa_math", SMALL.with_(value_dim=8), None),
        ("torch_sdpa", SMALL.with_(value_dim=8), None),
    ],
)
def test_a_kernel_declines_what_it_cannot_do(name: str, workload: Workload, reason: str | None) -> None:
    """On the CPU, in words that need no knowledge of PyTorch."""
    said = load(name).declines(workload)
    assert said is None if reason is None else reason in str(said)
