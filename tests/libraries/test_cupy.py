"""CuPy's library: the order of its steps and what it counts, on a stand-in; on a device where there is one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnlab.backends.discovery import load
from attnlab.backends.library import open_library
from attnlab.errors import Declined, Unavailable
from attnlab.libraries import cupy_library
from attnlab.problem.workload import Workload


class Fault(Exception):
    """As CuPy raises where a call of CUDA's runtime fails."""


class Hook:
    """CuPy's base of what is told of its pool while it is entered."""

    entered: list[Hook] = []  # noqa: RUF012 - all of them share it, as in CuPy

    def __enter__(self) -> Hook:
        self.entered.append(self)
        return self

    def __exit__(self, *fault: object) -> None:
        self.entered.remove(self)


class FakeCuPy(ModuleType):
    """A CuPy of one device, whose clock is advanced by hand, in milliseconds; its arrays are NumPy's."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__("cupy")
        self.__spec__ = ModuleSpec("cupy", loader=None)
        self.__version__ = "13.6.0"
        vars(self).update({name: getattr(np, name) for name in np.__all__ if not hasattr(self, name)})
        self.steps: list[str] = []
        self.flushed: list[int] = []
        self.now, self.devices = 0.0, devices
        self.asnumpy = np.asarray
        self.cuda = SimpleNamespace(
            Device=lambda: SimpleNamespace(synchronize=lambda: self.steps.append("synchronize")),
            Event=self._event,
            MemoryHook=Hook,
            cublas=SimpleNamespace(getVersion=lambda handle: 120803),
            get_cublas_handle=lambda: 1,
            get_elapsed_time=self._elapsed,
            runtime=SimpleNamespace(
                CUDARuntimeError=Fault,
                getDevice=lambda: 0,
                getDeviceCount=self._count,
                getDeviceProperties=lambda device: {"name": b"A GPU", "l2CacheSize": 50 * 2**20},
                memGetInfo=lambda: (7, 9),
                runtimeGetVersion=lambda: 12090,
            ),
        )
        self.get_default_memory_pool = lambda: SimpleNamespace(
            free_all_blocks=lambda: self.steps.append("free_all_blocks")
        )

    def _count(self) -> int:
        if not self.devices:
            raise Fault("cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.devices

    def _event(self) -> Any:
        event = SimpleNamespace(at=-1.0)

        def record() -> None:
            self.steps.append("record")
            event.at = self.now

        event.record = record
        return event

    def _elapsed(self, start: Any, end: Any) -> float:
        assert self.steps[-1] == "synchronize", "read before the device was waited for"
        return float(end.at - start.at)

    def empty(self, size: int, *, dtype: Any) -> Any:
        self.flushed.append(size * np.dtype(dtype).itemsize)

        def fill(number: int) -> None:
            self.steps.append("flush")
            self.now += 100.0

        return SimpleNamespace(fill=fill)

    def takes(self, mem_size: int) -> None:
        """Somebody takes so much of the pool, or gives it back."""
        for hook in Hook.entered:
            told = {"device_id": 0, "mem_size": abs(mem_size), "mem_ptr": 1, "pmem_id": 1}
            if mem_size > 0:
                hook.malloc_postprocess(size=mem_size, **told)  # type: ignore[attr-defined]
            else:
                hook.free_postprocess(**told)  # type: ignore[attr-defined]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCuPy]:
    """Makes a CuPy for this test only."""

    def made(devices: int = 1) -> FakeCuPy:
        module = FakeCuPy(devices)
        monkeypatch.setitem(sys.modules, "cupy", module)
        return module

    return made


def test_events_time_the_calls_and_not_the_cache_flush(fake: Callable[..., FakeCuPy]) -> None:
    """The L2 cache is overwritten before every call, and the device waited for once, at the end."""
    cupy = fake()
    library = cupy_library.open_on("cuda")

    def call() -> None:
        cupy.steps.append("call")
        cupy.now += 2.0

    assert library.time_calls(call, 3) == pytest.approx(2e-3)
    assert cupy.steps == ["flush", "record", "call", "record"] * 3 + ["synchronize"]
    assert cupy.flushed == [2 * 50 * 2**20], "twice the L2 cache"
    library.time_calls(call, 1)
    assert len(cupy.flushed) == 1, "the buffer is kept"
    library.trim()
    assert cupy.steps[-1] == "free_all_blocks"
    library.time_calls(call, 1)
    assert len(cupy.flushed) == 2, "it was given back"


def test_peak_memory_is_what_one_call_takes_of_the_pool(fake: Callable[..., FakeCuPy]) -> None:
    """Beyond what was held before; all work is done when counting begins, and when it ends."""
    cupy = fake()
    library = cupy_library.open_on("cuda")

    def call() -> None:
        cupy.steps.append("call")
        for size in (300, -300, 512, 1024, -512, 100):
            cupy.takes(size)

    assert library.peak_bytes(call) == 1536
    assert library.peak_bytes(call) == 1536, "from nothing again"
    assert cupy.steps == ["synchronize", "call", "synchronize"] * 2
    assert not Hook.entered


def test_what_it_tells(fake: Callable[..., FakeCuPy], monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    library = cupy_library.open_on("cuda")
    assert (library.device, library.cache, library.free_bytes()) == ("cuda", "cold", 7)
    assert library.versions() == {"cupy": "13.6.0", "cuda": "12090", "numpy": np.__version__}
    assert library.attest(lambda: None) == "cuBLAS 120803 and CuPy's own kernels"
    monkeypatch.delenv("CUPY_TF32", raising=False)
    assert library.modes() == {"TF32 in cuBLAS": "off"}
    monkeypatch.setenv("CUPY_TF32", "1")
    assert library.modes() == {"TF32 in cuBLAS": "allowed"}
    assert [library.declines(one) is None for one in ("float16", "float32", "float64", "bfloat16")] == [
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(Declined, match="cupy has no automatic differentiation"):
        library.training_call(lambda *arrays: None, (), None)


def test_arrays_go_in_and_out(fake: Callable[..., FakeCuPy]) -> None:
    """By the functions that CuPy has under NumPy's names."""
    fake()
    library = cupy_library.open_on("cuda")
    given = np.arange(6, dtype=np.float64).reshape(2, 3).T
    array = library.from_numpy(given, "float16")
    assert library.dtype_of(array) == "float16" and array.flags.c_contiguous
    np.testing.assert_array_equal(library.to_numpy(array), given)
    assert library.dtype_of(library.from_numpy(given > 2, "float16")) == "bool"
    assert library.shares_memory(array, array[1:]) and not library.shares_memory(array, array.copy())
    assert library.stacked([array, array], 0).shape == (2, 3, 2)
    assert library.concatenate([array, array], 1).shape == (3, 4)
    assert library.expanded(array[:, None], (3, 5, 2)).shape == (3, 5, 2)
    assert library.numbers(np.arange(3)).dtype == np.int32
    np.testing.assert_array_equal(library.taking(np.array([[2, 0]]))(array)[0], given[[2, 0]])
    np.testing.assert_array_equal(library.fill(array, array > 2, -1.0), np.where(given > 2, -1, given))


@pytest.mark.parametrize(
    ("devices", "device", "reason"),
    [
        (1, "cpu", "CuPy computes on CUDA only, not on cpu"),
        (0, "cuda", r"no CUDA device is usable by this CuPy \(cudaErrorNoDevice: .*\); use --device cpu"),
    ],
)
def test_where_it_cannot_compute_it_says_why(
    devices: int, device: str, reason: str, fake: Callable[..., FakeCuPy]
) -> None:
    fake(devices)
    with pytest.raises(Unavailable, match=reason):
        cupy_library.open_on(device)


def test_where_it_is_missing_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the library, and of the contender on its arrays, which `array_api` itself does not need."""
    pytest.importorskip("array_api_compat", reason="array-api-compat is not installed")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda module, find=importlib.util.find_spec: None if module == "cupy" else find(module),
    )
    missing = r"^cupy is not installed; pip install 'attnlab\[cupy\]'$"
    with pytest.raises(Unavailable, match=missing):
        cupy_library.open_on("cuda")
    backend = load("array_api", settings={"arrays": "cupy"})
    assert backend.library == "cupy"
    with pytest.raises(Unavailable, match=missing):
        backend.open("cuda")


def test_on_a_device_the_formula_is_right() -> None:
    """Where CuPy and a device are there."""
    try:
        library = open_library("cupy", "cuda")
    except Unavailable as missing:
        pytest.skip(str(missing))
    workload = Workload(heads=4, kv_heads=2, queries=33, keys=65, causal="bottom_right", device="cuda")
    backend = load("array_api", settings={"arrays": "cupy"})
    call = backend.bind(workload)
    exact = load("naive_loop").bind(workload.with_(device="cpu", dtype="float64"))()
    np.testing.assert_allclose(library.to_numpy(call()), exact, atol=1e-5)
    assert library.peak_bytes(call) >= workload.score_bytes + workload.output_bytes
    assert library.time_calls(call, 3) > 0
