"""PyTorch on the CPU or on the current CUDA device: all four number formats, and gradients.

Beside it PyTorch in several processes, and Keras on its arrays.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.library import Arrays, Call
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.host import HostLibrary, seconds_by_events
from attnlab.workload.number_formats import round_to

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11: workers run in 3.10 too

#: bytes of NaN before and after each array
_PAGE = 4096
#: packages with kernels of their own on its arrays
_EXTENSIONS = ("flash_attn", "xformers", "flashinfer", "sageattention")
#: how the profiler names a call of what TorchDynamo and Inductor have compiled
_COMPILED = "Torch-Compiled Region"
#: what PyTorch says of an operator that has no backward pass
_NO_BACKWARD = ("is not implemented", "no autograd formula", "is not differentiable")
#: and where it is to be deterministic, of one that cannot be
_NOT_DETERMINISTIC = "does not have a deterministic implementation"


class Torch(HostLibrary):
    """See `attnlab.backends.library.Library`."""

    name = "torch"
    before_fork: ClassVar[tuple[str, ...] | None] = ("torch",)
    thread_variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    #: its CPU allocator then aligns what is over 2 MiB to a huge page and asks the kernel for one. (NumPy asks by
    #: itself, from 4 MiB on; glibc.malloc.hugetlb=1 asks too, but does not align, and left two speeds:
    #: docs/decisions/0004)
    huge_pages: ClassVar[Mapping[str, str]] = {"THP_MEM_ALLOC_ENABLE": "1"}
    without_gradients: str | None = None

    @classmethod
    def open_on(cls, device: str) -> Self:
        """It on `device`. Raises Unavailable where PyTorch sees no CUDA device."""
        return cls(device)

    def __init__(self, device: str) -> None:
        import torch

        super().__init__(torch)
        if device == "cuda" and not torch.cuda.is_available():
            raise Unavailable("no CUDA device is usable by this PyTorch; use --device cpu")
        self.device = device
        self.cache = "cold" if device == "cuda" else "warm"
        self._flush: Any = None

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        torch = self.module
        if array.dtype == np.bool_:
            return torch.from_numpy(np.array(array, order="C")).to(device=self.device)
        copied = torch.from_numpy(between_nan(round_to(array, dtype)))
        return copied.to(device=self.device, dtype=getattr(torch, dtype)).contiguous()

    def to_numpy(self, array: Any) -> NDArray[Any]:
        torch = self.module
        copied = array.detach().to("cpu")
        return np.asarray((copied.to(torch.float32) if copied.dtype == torch.bfloat16 else copied).numpy())

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return array.masked_fill(where, number)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.module.nn.functional.linear(x, weight, bias)

    def stacked(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.module.stack(tuple(arrays), dim=axis)

    def shares_memory(self, one: Any, other: Any) -> bool:
        storages = [getattr(array, "untyped_storage", None) for array in (one, other)]
        places = [storage().data_ptr() for storage in storages if storage is not None]
        return len(places) == 2 and bool(places[0] == places[1] != 0)

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.module.cat(tuple(arrays), axis)

    def write(self, array: Any, at: tuple[slice, ...], rows: Any) -> None:
        array[at] = rows

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        index = self.module.from_numpy(places.reshape(-1)).to(self.device)
        return lambda array: array.index_select(0, index).reshape(*places.shape, *array.shape[1:])

    def numbers(self, array: NDArray[np.int64]) -> Any:
        return self.module.from_numpy(array.astype(np.int32)).to(self.device)

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        leaves = _leaves(arrays)
        output = self._remembered(attend, leaves)
        return lambda: self._gradients(output, leaves, output_gradient, retain_graph=True)

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        leaves = _leaves(arrays)

        def call() -> tuple[Any, ...]:
            output = self._remembered(attend, leaves)
            return output.detach(), *self._gradients(output, leaves, output_gradient)

        return call

    def _remembered(self, attend: Callable[..., Any], leaves: Arrays) -> Any:
        """The output, with the way back. Raises Declined where there is none."""
        try:
            with self.module.enable_grad():
                output = attend(*leaves)  # some say that they have none only when asked to remember the way
        except (NotImplementedError, RuntimeError) as refused:
            raise _told(refused) from None
        if not getattr(output, "requires_grad", True):
            raise Declined("its output is cut off from automatic differentiation")
        return output

    def _gradients(
        self, output: Any, leaves: Arrays, output_gradient: Any, **options: Any
    ) -> tuple[Any, ...]:
        try:
            found: tuple[Any, ...] = self.module.autograd.grad(
                output, leaves, output_gradient, allow_unused=True, **options
            )
        except (NotImplementedError, RuntimeError) as refused:
            raise _told(refused) from None
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
            self._flush = self.module.empty(2 * cache_bytes, dtype=self.module.int8, device=self.device)
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(iterations)]
        return seconds_by_events(
            call, pairs, self._flush.zero_, cuda.synchronize, lambda start, end: start.elapsed_time(end)
        )

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
        """Kernels by the profiler's record of one call: the fused operator where there is one."""
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
        loaded = {name: sys.modules[name] for name in _EXTENSIONS if name in sys.modules}
        return found | {name: str(getattr(one, "__version__", "unknown")) for name, one in loaded.items()}


def between_nan(array: NDArray[Any]) -> NDArray[Any]:
    """A copy between two pages of NaN, at a multiple of 64 bytes: a kernel that reads past the end is visibly wrong.

    FlexAttention compiled for AVX2 by PyTorch 2.13 does so.
    """
    memory = np.full(array.nbytes + 2 * _PAGE + 64, 0xFF, np.uint8)
    start = _PAGE + -(memory.ctypes.data + _PAGE) % 64
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def _leaves(arrays: Arrays) -> Arrays:
    return tuple(array.detach().requires_grad_() for array in arrays)


def _told(refused: Exception) -> Exception:
    """Declined where PyTorch says that there is no way back, else the exception itself."""
    if isinstance(refused, NotImplementedError) or any(
        said in str(refused) for said in (*_NO_BACKWARD, _NOT_DETERMINISTIC)
    ):
        return Declined(f"PyTorch says: {' '.join(str(refused).split())[:200]}")
    return refused


def recorded(device: str) -> Any:
    """PyTorch's profiler, which records what runs while it is entered."""
    import torch

    # PyTorch 2.13's profiler announces itself on standard error; it reads this when first started
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # the tracing library, which takes a second to start, is needed only to see device kernels
    on_cuda = device == "cuda"
    return torch.autograd.profiler.profile(use_device="cuda" if on_cuda else None, use_kineto=on_cuda)


def kernels_of(events: Sequence[str]) -> str:
    """The attention operators among profiler event names, or else the matrix products and the softmax.

    `scaled_dot_product_attention` itself is the dispatcher, not a kernel; what extensions register has another name
    than ``aten`` before its ``::``; a device kernel has none, or is a C++ function with its type. What Inductor has
    compiled calls operators too; its own loops have no names.
    """
    operators = [name.removeprefix("aten::") for name in events if name.startswith("aten::")]
    fused = [name for name in operators if name.startswith(("_scaled_dot_product", "_native_multi_head"))]
    theirs = [
        name for name in events if re.fullmatch(r"(?!aten)\w+::\w*(attn|attention|flash|sdpa)\w*", name)
    ]
    theirs += [name for name in operators if name.startswith(("_efficient_attention", "_flash_attention"))]
    plain = [name for name in operators if name in ("bmm", "mm", "baddbmm", "_softmax", "_safe_softmax")]
    device = [name for name in events if _of_a_device(name)]
    shown = sorted(set(fused or theirs or plain))
    if device:
        shown.append(f"[{min(device, key=len)[:60]}]")
    if any(name.startswith(_COMPILED) for name in events):
        called = f"{' + '.join(shown)}, called by Inductor" if fused else ""
        return called or " + ".join([*shown, "loops of Inductor"])
    return " + ".join(shown) or "unknown: the profiler named no kernel"


def _of_a_device(name: str) -> bool:
    """Whether a profiler's event is a kernel of attention, or of what it is made of, on a device."""
    words = ("flash", "fmha", "attn", "attention", "cutlass", "sdpa", "gemm", "softmax", "prefill")
    function = name.split("<")[0].split("(")[0]
    return ("::" not in function or function.startswith("void ")) and any(
        word in name.lower() for word in words
    )


class Keras(Torch):
    """Keras on PyTorch's arrays: its torch backend, which is chosen before Keras is imported."""

    name = "keras"
    before_fork = None
    modules = ("keras",)
    arrays_of = "torch"

    @classmethod
    def opened(cls) -> Any:
        """The module. Raises Unavailable where it is not installed, or was imported with another backend before."""
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
        # Keras moves what it is given to the device that it finds best, unless it is told which one
        scope = self._keras.device(device)
        scope.__enter__()
        atexit.register(scope.__exit__, None, None, None)  # while Keras is still there

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "keras": self._keras.__version__}


class TorchRanks(Torch):
    """PyTorch in several processes (`attnlab.libraries.torch_ranks`), on the CPU of a Linux machine."""

    #: why no block is made around its attention
    no_projections = "only the attention is cut over processes, not its projections"

    name = "torch_ranks"
    before_fork = None
    arrays_of = "torch"

    @classmethod
    def open_on(cls, device: str) -> Self:
        """It on `device`. Raises Unavailable for any device but the CPU, and where processes cannot be connected."""
        if device != "cpu":
            raise Unavailable(f"attnlab runs ranks on the CPU only, not on {device}")
        found = cls(device)
        if not found.module.distributed.is_available() or not hasattr(os, "memfd_create"):
            raise Unavailable("ranks need Linux and a PyTorch with torch.distributed")
        return found

    def peak_bytes(self, call: Call) -> int | None:
        """Raises RuntimeError: the memory is that of other processes."""
        raise RuntimeError("the memory of the ranks is not measured")

    def attest(self, call: Call) -> str:
        return "unknown: the ranks are not profiled"


LIBRARIES = (Torch, TorchRanks, Keras)
