"""PyTorch and CuPy on CUDA: the order of the instruments' steps on stand-ins, and the real thing where there is one."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_kernels import module

from attnlab.backends.discovery import backends, load
from attnlab.backends.library import Library, open_library
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.cupy_library import CuPy
from attnlab.libraries.torch_library import Torch, kernels_of
from attnlab.workload.drawing import problem_of
from attnlab.workload.workload import Workload


class Device:
    """A device whose clock is advanced by hand, in milliseconds, and whose allocator counts and notes each step."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.flushed: list[int] = []
        self.now, self.held, self.peak, self.there = 0.0, 1000, 5000, True
        self.hooks: list[Any] = []

    def note(self, step: str) -> Any:
        return lambda *given, **named: self.steps.append(step)

    def event(self, **asked: Any) -> Any:
        event = SimpleNamespace(at=-1.0)
        event.record = lambda: (self.steps.append("record"), setattr(event, "at", self.now))
        event.elapsed_time = lambda other: self.elapsed(event, other)
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        assert self.steps[-1] == "synchronize", "read before the device was waited for"
        return float(end.at - start.at)

    def buffer(self, size: int, **asked: Any) -> Any:
        """What overwrites the cache: it takes 100 ms."""
        self.flushed.append(size)

        def flush(*given: Any) -> None:
            self.steps.append("flush")
            self.now += 100.0

        return SimpleNamespace(zero_=flush, fill=flush)

    def call(self) -> None:
        """2 ms, that take 300 bytes and give back 200."""
        self.steps.append("call")
        self.now += 2.0
        self.held += 300
        self.peak = max(self.peak, self.held)
        for hook in self.hooks:
            hook.malloc_postprocess(mem_size=300)
            hook.free_postprocess(mem_size=200)
        self.held -= 200

    def as_torch(self) -> Any:
        def reset() -> None:
            self.steps.append("reset")
            self.peak = self.held

        cuda = SimpleNamespace(
            is_available=lambda: self.there,
            synchronize=self.note("synchronize"),
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=50 * 2**20),
            Event=self.event,
            reset_peak_memory_stats=reset,
            memory_allocated=lambda: self.held,
            max_memory_allocated=lambda: self.peak,
            mem_get_info=lambda: (7, 9),
            empty_cache=self.note("given back"),
        )
        return SimpleNamespace(cuda=cuda, empty=self.buffer, int8="int8")

    def as_cupy(self) -> ModuleType:
        device = self

        class Fault(Exception):
            pass

        class Hook:
            def __enter__(self) -> Hook:
                device.hooks.append(self)
                return self

            def __exit__(self, *fault: object) -> None:
                device.hooks.remove(self)

        def count() -> int:
            if not self.there:
                raise Fault("cudaErrorNoDevice: no CUDA-capable device is detected")
            return 1

        runtime = SimpleNamespace(
            CUDARuntimeError=Fault,
            getDevice=lambda: 0,
            getDeviceCount=count,
            getDeviceProperties=lambda device: {"l2CacheSize": 50 * 2**20},
            memGetInfo=lambda: (7, 9),
            runtimeGetVersion=lambda: 12090,
        )
        cuda = SimpleNamespace(
            Device=lambda: SimpleNamespace(synchronize=self.note("synchronize")),
            Event=self.event,
            MemoryHook=Hook,
            get_elapsed_time=self.elapsed,
            runtime=runtime,
        )
        pool = SimpleNamespace(free_all_blocks=self.note("given back"))
        numpys = {name: getattr(np, name) for name in np.__all__}
        own = {"__version__": "13.6.0", "asnumpy": np.asarray, "empty": self.buffer, "cuda": cuda}
        return module("cupy", **numpys | own, get_default_memory_pool=lambda: pool)


@pytest.fixture(params=["torch", "cupy"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Library]:
    """A stand-in's device, and the library on it."""
    device = Device()
    monkeypatch.setitem(sys.modules, request.param, getattr(device, f"as_{request.param}")())
    return device, Torch("cuda") if request.param == "torch" else CuPy.open_on("cuda")


def test_events_time_the_calls_and_not_the_cache_flush(opened: tuple[Device, Library]) -> None:
    """The L2 cache is overwritten before every call, and the device waited for once, at the end."""
    device, library = opened
    assert library.time_calls(device.call, 3) == pytest.approx(2e-3)
    assert device.steps == ["flush", "record", "call", "record"] * 3 + ["synchronize"]
    library.time_calls(device.call, 1)
    assert device.flushed == [2 * 50 * 2**20], "twice the L2 cache, and it is kept"
    library.trim()
    assert device.steps[-1] == "given back"
    library.time_calls(device.call, 1)
    assert len(device.flushed) == 2, "it was given back"
    assert (library.device, library.cache, library.free_bytes()) == ("cuda", "cold", 7)


def test_peak_memory_is_what_one_call_adds_to_what_was_held(opened: tuple[Device, Library]) -> None:
    """Counting begins with all work done, and ends so."""
    device, library = opened
    assert library.peak_bytes(device.call) == 300
    assert library.peak_bytes(device.call) == 300, "from nothing again"
    assert [step for step in device.steps if step != "reset"] == ["synchronize", "call", "synchronize"] * 2
    assert not device.hooks


def test_where_there_is_no_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.there = False
    monkeypatch.setitem(sys.modules, "torch", device.as_torch())
    monkeypatch.setitem(sys.modules, "cupy", device.as_cupy())
    with pytest.raises(Unavailable, match="no CUDA device is usable by this PyTorch; use --device cpu"):
        Torch("cuda")
    with pytest.raises(Unavailable, match=r"usable by this CuPy \(cudaErrorNoDevice: .*\); use --device cpu"):
        CuPy.open_on("cuda")
    with pytest.raises(Unavailable, match="CuPy computes on CUDA only, not on cpu"):
        CuPy.open_on("cpu")


def test_cupys_arrays_go_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the functions that CuPy has under NumPy's names."""
    monkeypatch.setitem(sys.modules, "cupy", Device().as_cupy())
    library = CuPy.open_on("cuda")
    given = np.arange(6, dtype=np.float64).reshape(2, 3).T
    array = library.from_numpy(given, "float16")
    assert library.dtype_of(array) == "float16" and array.flags.c_contiguous
    np.testing.assert_array_equal(library.to_numpy(array), given)
    assert library.shares_memory(array, array[1:]) and not library.shares_memory(array, array.copy())
    np.testing.assert_array_equal(library.taking(np.array([[2, 0]]))(array)[0], given[[2, 0]])
    np.testing.assert_array_equal(library.fill(array, array > 2, -1.0), np.where(given > 2, -1, given))
    assert library.declines("bfloat16") and not library.declines("float16")
    with pytest.raises(Declined, match="cupy has no automatic differentiation"):
        library.training_call(lambda *arrays: None, (), None)


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ("aten::matmul, aten::bmm, aten::softmax, aten::_softmax, aten::bmm", "_softmax + bmm"),
        (
            "aten::scaled_dot_product_attention, aten::_scaled_dot_product_flash_attention, cudaLaunchKernel, "
            "void pytorch_flash::flash_fwd_kernel<traits>(params), flash_fwd_splitkv_kernel",
            "_scaled_dot_product_flash_attention + [flash_fwd_splitkv_kernel]",
        ),
        ("aten::scaled_dot_product_attention, aten::empty", "unknown: the profiler named no kernel"),
        ("aten::bmm, ampere_sgemm_128x64_tn", "bmm + [ampere_sgemm_128x64_tn]"),
        (
            "aten::empty, flash_attn::_flash_attn_forward, void flash::flash_fwd_kernel<t>(p)",
            "flash_attn::_flash_attn_forward + [void flash::flash_fwd_kernel<t>(p)]",
        ),
        ("void flashinfer::BatchPrefillKernel<t>(p)", "[void flashinfer::BatchPrefillKernel<t>(p)]"),
    ],
)
def test_the_kernel_is_told_from_the_profilers_names(events: str, shown: str) -> None:
    """The dispatcher is no kernel; a fused operator hides the plain ones; device kernels in brackets."""
    assert kernels_of(events.split(", ")) == shown


# -- on a real device -----------------------------------------------------------------------------------


@pytest.fixture
def device() -> Any:
    """PyTorch's CUDA library, or a skip that says why."""
    try:
        return open_library("torch", "cuda")
    except Unavailable as missing:
        pytest.skip(str(missing))


def on_cuda(name: str, workload: Workload, **settings: str) -> Any:
    """A bound call of a backend, or a skip with its own reason."""
    try:
        backend = load(name, settings=settings)
        refusal = backend.declines(workload)
    except Unavailable as missing:
        pytest.skip(str(missing))
    if refusal:
        pytest.skip(refusal.reason)
    return backend.bind(workload)


HALF = Workload(heads=4, queries=512, keys=512, dtype="float16", device="cuda")


@pytest.mark.parametrize("name", [name for name in backends() if name.startswith("torch_sdpa_")])
def test_a_forced_kernel_is_the_one_that_ran(device: Any, name: str) -> None:
    """By the profiler's word."""
    call, kernel = on_cuda(name, HALF), load(name).kernel
    assert kernel is not None and kernel in device.attest(call)


@pytest.mark.parametrize("asked", [{}, {"causal": "bottom_right", "queries": 384}, {"kv_heads": 2}], ids=str)
@pytest.mark.parametrize("name", ["flash_attn", "xformers", "flashinfer", "array_api"])
def test_what_was_written_for_stand_ins_is_so_on_a_device(
    device: Any, name: str, asked: dict[str, Any]
) -> None:
    """Within some roundings of float16, against NumPy in float64."""
    workload = HALF.with_(**asked)
    settings = {"arrays": "cupy"} if name == "array_api" else {}
    call = on_cuda(name, workload, **settings)
    found = open_library(load(name, settings=settings).library, "cuda").to_numpy(call())
    exact = workload.with_(device="cpu", dtype="float64")
    expected = load("numpy_blocked").bind(exact, problem_of(workload).with_(dtype="float64"))()
    assert np.linalg.norm(found - expected) < 2**-9 * np.linalg.norm(expected)


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
