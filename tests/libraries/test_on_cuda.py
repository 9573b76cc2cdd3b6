"""PyTorch on CUDA, if there is a device; and the kernel's name from a profile."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from attnlab.backends.discovery import backends, load
from attnlab.errors import Unavailable
from attnlab.libraries.library import open_library
from attnlab.libraries.torch_library import kernels_of
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.workload import Workload


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        (
            "aten::scaled_dot_product_attention, aten::_scaled_dot_product_flash_attention, cudaLaunchKernel, "
            "void pytorch_flash::flash_fwd_kernel<traits>(params), flash_fwd_splitkv_kernel",
            "_scaled_dot_product_flash_attention + [flash_fwd_splitkv_kernel]",
        ),
        ("aten::scaled_dot_product_attention, aten::empty", "unknown: the profiler named no kernel"),
    ],
)
def test_the_kernel_is_told_from_the_profilers_names(events: str, shown: str) -> None:
    """The dispatcher does not count; a fused operator hides the plain ones; device kernels are in brackets."""
    assert kernels_of(events.split(", ")) == shown


# -- on a real device -----------------------------------------------------------------------------------


@pytest.fixture
def device() -> Any:
    """PyTorch's CUDA library, or a skip that says why."""
    try:
        return open_library("torch", "cuda")
    except Unavailable as missing:
        pytest.skip(str(missing))


def on_cuda(name: str, workload: Workload) -> Any:
    """A bound call of a backend, or a skip with the backend's reason."""
    try:
        backend = load(name)
        refusal = backend.declines(workload)
    except Unavailable as missing:
        pytest.skip(str(missing))
    if refusal:
        pytest.skip(refusal.reason)
    return backend.bind(workload)


HALF = Workload(heads=4, queries=512, keys=512, dtype="float16", device="cuda")


@pytest.mark.parametrize("name", [name for name in backends() if name.startswith("torch_sdpa_")])
def test_a_forced_kernel_is_the_one_that_ran(device: Any, name: str) -> None:
    """Its name is read from the profiler."""
    call, kernel = on_cuda(name, HALF), load(name).kernel
    assert kernel is not None and kernel in device.attest(call)


@pytest.mark.parametrize("asked", [{}, {"causal": "bottom_right", "queries": 384}, {"kv_heads": 2}], ids=str)
@pytest.mark.parametrize("name", ["flash_attn", "xformers", "flashinfer"])
def test_what_was_written_for_stand_ins_is_so_on_a_device(device, name, asked) -> None:
    """Within a few roundings of float16, compared with NumPy in float64."""
    workload = HALF.with_(**asked)
    found = device.to_numpy(on_cuda(name, workload)())
    exact = workload.with_(device="cpu", dtype="float64")
    expected = load("numpy_blocked").bind(exact, inputs_of(workload).with_(dtype="float64"))()
    assert np.linalg.norm(found - expected) < 2**-9 * np.linalg.norm(expected)


@pytest.mark.parametrize("length", [512, 2048])
def test_device_memory_of_eager_attention_is_two_score_matrices_and_the_output(device, length) -> None:
    """Within 1 %, after the workspaces of the matrix products have been allocated."""
    workload = HALF.with_(queries=length, keys=length, dtype="float32")
    call = on_cuda("torch_eager", workload)
    call()
    analytic = 2 * workload.score_bytes + workload.output_bytes
    assert device.peak_bytes(call) == pytest.approx(analytic, rel=0.01)


def test_running_out_of_device_memory_is_an_outcome(device: Any) -> None:
    """The worker reports it and continues."""
    from attnlab.backends.contender import Contender
    from attnlab.processes import Failed, Process

    worker = Process("attnlab.race.worker:work", environment=os.environ)
    try:
        worker.ask("load", seconds=120, contender=Contender.parse("torch_eager"), folders=[])
        length = 2**15  # 8 heads x 2^30 scores x 4 bytes, twice
        huge = Workload(heads=64, queries=length, keys=length, head_dim=8, device="cuda")
        with pytest.raises(Failed, match="ran out of memory") as refusal:
            worker.ask("trial", seconds=300, workload=huge)
        assert refusal.value.kind == "memory"
        assert worker.ask("trial", seconds=60, workload=HALF) > 0
    finally:
        worker.end()
