"""PyTorch on CUDA: the order of the instruments' steps on a stand-in, and the real thing where there is one."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attnlab.backends.discovery import backends, load
from attnlab.backends.library import open_library
from attnlab.errors import Unavailable
from attnlab.libraries.torch_library import Torch, kernels_of
from attnlab.problem.inputs import problem_of
from attnlab.problem.workload import Workload


class FakeCuda:
    """A device whose clock is advanced by hand, in milliseconds, and whose allocator counts."""

    def __init__(self, steps: list[str]) -> None:
        self.steps, self.now, self.held, self.peak = steps, 0.0, 1000, 5000

    def is_available(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.steps.append("synchronize")

    def get_device_properties(self, device: str) -> Any:
        assert device == "cuda"
        return types.SimpleNamespace(L2_cache_size=50 * 2**20)

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 - as torch calls it
        assert enable_timing
        cuda = self

        class Event:
            at = -1.0

            def record(self) -> None:
                cuda.steps.append("record")
                self.at = cuda.now

            def elapsed_time(self, other: Event) -> float:
                assert cuda.steps[-1] == "synchronize", "read before the device was waited for"
                return other.at - self.at

        return Event()

    def reset_peak_memory_stats(self) -> None:
        self.steps.append("reset")
        self.peak = self.held

    def memory_allocated(self) -> int:
        return self.held

    def max_memory_allocated(self) -> int:
        return self.peak

    def allocate(self, count: int) -> None:
        self.held += count
        self.peak = max(self.peak, self.held)

    def mem_get_info(self) -> tuple[int, int]:
        return 7, 9

    def empty_cache(self) -> None:
        self.steps.append("empty_cache")


class Fake:
    """Torch as far as the instruments touch it on CUDA."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.cuda = FakeCuda(self.steps)
        self.sizes: list[int] = []
        self.int8 = "int8"

    def empty(self, size: int, *, dtype: str, device: str) -> Any:
        assert (dtype, device) == ("int8", "cuda")
        self.sizes.append(size)

        def zero() -> None:
            self.steps.append("flush")
            self.cuda.now += 100.0

        return types.SimpleNamespace(zero_=zero)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A torch with a CUDA device, for this test only."""
    stand_in = Fake()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    yield stand_in


def test_events_time_the_calls_and_not_the_cache_flush(fake: Fake) -> None:
    """The L2 cache is overwritten before every call, and the device waited for once, at the end."""

    def call() -> None:
        fake.steps.append("call")
        fake.cuda.now += 2.0

    library = Torch("cuda")
    assert library.time_calls(call, 3) == pytest.approx(2e-3)
    assert fake.steps == ["flush", "record", "call", "record"] * 3 + ["synchronize"]
    assert fake.sizes == [2 * 50 * 2**20], "twice the L2 cache"
    library.time_calls(call, 1)
    assert len(fake.sizes) == 1, "the buffer is kept"
    assert library.cache == "cold"


def test_peak_memory_is_what_one_call_adds_to_what_was_held(fake: Fake) -> None:
    """The statistics are reset with all work done, and read with all work done."""

    def call() -> object:
        fake.steps.append("call")
        fake.cuda.allocate(300)
        fake.cuda.held -= 200
        return object()

    assert Torch("cuda").peak_bytes(call) == 300
    assert fake.steps == ["synchronize", "reset", "call", "synchronize"]


def test_trimming_gives_the_kept_memory_back(fake: Fake) -> None:
    """The flush buffer too; the next timing takes a new one."""
    library = Torch("cuda")
    library.time_calls(lambda: None, 1)
    library.trim()
    assert fake.steps[-1] == "empty_cache"
    library.time_calls(lambda: None, 1)
    assert len(fake.sizes) == 2


def test_free_memory_is_the_devices(fake: Fake) -> None:
    """Not the host's."""
    assert Torch("cuda").free_bytes() == 7


def test_without_a_device_it_is_unavailable_and_says_what_to_do(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for CUDA on a machine that has none."""
    monkeypatch.setattr(fake.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="no CUDA device is usable by this PyTorch; use --device cpu"):
        Torch("cuda")


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        (["aten::matmul", "aten::bmm", "aten::softmax", "aten::_softmax", "aten::bmm"], "_softmax + bmm"),
        (
            [
                "aten::scaled_dot_product_attention",
                "aten::_scaled_dot_product_flash_attention",
                "cudaLaunchKernel",
                "void pytorch_flash::flash_fwd_kernel<traits>(params)",
                "flash_fwd_splitkv_kernel",
            ],
            "_scaled_dot_product_flash_attention + [flash_fwd_splitkv_kernel]",
        ),
        (["aten::scaled_dot_product_attention", "aten::empty"], "unknown: the profiler named no kernel"),
        ([], "unknown: the profiler named no kernel"),
        (["aten::bmm", "ampere_sgemm_128x64_tn"], "bmm + [ampere_sgemm_128x64_tn]"),
        (
            ["aten::empty", "flash_attn::_flash_attn_forward", "void flash::flash_fwd_kernel<t>(p)"],
            "flash_attn::_flash_attn_forward + [void flash::flash_fwd_kernel<t>(p)]",
        ),
        (
            ["aten::_efficient_attention_forward", "fmha_cutlassF_f16_aligned"],
            "_efficient_attention_forward + [fmha_cutlassF_f16_aligned]",
        ),
        (["void flashinfer::BatchPrefillKernel<t>(p)"], "[void flashinfer::BatchPrefillKernel<t>(p)]"),
    ],
)
def test_the_kernel_is_told_from_the_profilers_names(events: list[str], shown: str) -> None:
    """The dispatcher is no kernel; a fused operator hides the plain ones; device kernels in brackets."""
    assert kernels_of(events) == shown


def test_on_the_cpu_torch_attests_what_it_ran() -> None:
    """A matrix product and no attention."""
    library = open_library("torch")
    one = library.from_numpy(np.ones((2, 3, 3), np.float32), "float32")
    assert library.attest(lambda: one @ one) == "bmm"


def test_a_library_is_opened_once() -> None:
    """So that what it keeps between calls, such as the flush buffer, is kept."""
    assert open_library("numpy") is open_library("numpy")


# -- on a real device -----------------------------------------------------------------------------------


@pytest.fixture
def device() -> Any:
    """PyTorch's CUDA library, or a skip that says why."""
    try:
        return open_library("torch", "cuda")
    except Unavailable as missing:
        pytest.skip(str(missing))


def on_cuda(name: str, workload: Workload) -> Any:
    """A bound call of a backend, or a skip with its own reason."""
    backend = load(name)
    reason = backend.declines(workload)
    if reason:
        pytest.skip(reason)
    return backend.bind(workload)


FORCED = [name for name in backends() if name.startswith("torch_sdpa_")]
HALF = Workload(heads=4, queries=512, keys=512, dtype="float16", device="cuda")


@pytest.mark.parametrize("name", FORCED)
def test_a_forced_kernel_is_the_one_that_ran(device: Any, name: str) -> None:
    """By the profiler's word."""
    kernel = load(name).kernel
    assert kernel is not None
    assert kernel in device.attest(on_cuda(name, HALF))


@pytest.mark.parametrize("asked", [{}, {"causal": "bottom_right", "queries": 384}, {"kv_heads": 2}], ids=str)
@pytest.mark.parametrize("name", ["flash_attn", "xformers", "flashinfer"])
def test_what_was_written_for_stand_ins_is_so_on_a_device(
    device: Any, name: str, asked: dict[str, Any]
) -> None:
    """Within some roundings of float16, against NumPy in float64."""
    try:
        workload = HALF.with_(**asked)
        found = device.to_numpy(on_cuda(name, workload)())
    except Unavailable as missing:
        pytest.skip(str(missing))
    exact = workload.with_(device="cpu", dtype="float64")
    expected = load("numpy_blocked").bind(exact, problem_of(workload).with_(dtype="float64"))()
    assert np.linalg.norm(found - expected) < 2**-9 * np.linalg.norm(expected)


def test_events_see_that_more_work_takes_longer(device: Any) -> None:
    """256 times the FLOPs, at least four times the time: no more is claimed."""
    small = on_cuda("torch_eager", HALF)
    large = on_cuda("torch_eager", HALF.with_(queries=8192, keys=8192))
    for call in (small, large):
        device.time_calls(call, 3)
    assert device.time_calls(large, 5) > 4 * device.time_calls(small, 5) > 0


@pytest.mark.parametrize("length", [512, 2048])
def test_device_memory_of_eager_attention_is_two_score_matrices_and_the_output(
    device: Any, length: int
) -> None:
    """Within 1 %, once the workspaces of the matrix products are there."""
    workload = HALF.with_(queries=length, keys=length, heads=8, dtype="float32")
    call = on_cuda("torch_eager", workload)
    call()
    analytic = 2 * workload.score_bytes + workload.output_bytes
    assert device.peak_bytes(call) == pytest.approx(analytic, rel=0.01)


def test_running_out_of_device_memory_is_an_outcome(device: Any) -> None:
    """The worker says so and lives on."""
    from attnlab.backends.contender import Contender
    from attnlab.race.worker_process import Refused, WorkerProcess

    worker = WorkerProcess(Contender.parse("torch_eager"))
    try:
        worker.start()
        worker.finish_start()
        length = 2**16  # 64 heads x 2^32 scores x 4 bytes: a tebibyte
        huge = Workload(heads=64, queries=length, keys=length, head_dim=8, device="cuda")
        worker.ask("prepare", seconds=300, workload=huge)
        with pytest.raises(Refused, match="ran out of memory") as refusal:
            worker.ask("check", seconds=300, rows=[0])
        assert refusal.value.kind == "memory"
        worker.ask("release", seconds=60)
        worker.ask("prepare", seconds=60, workload=HALF)
        worker.ask("check", seconds=60, rows=[0])
    finally:
        worker.end()
