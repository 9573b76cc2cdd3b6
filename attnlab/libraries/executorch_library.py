"""ExecuTorch's operators on PyTorch's tensors: where they are loaded from, and their own threads."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from attnlab.errors import Unavailable
from attnlab.libraries.torch_library import Torch

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "torch"

#: they need nothing else of what the package asks for, which is more than attnlab is in all
_MEND = "pip install --no-deps executorch==1.5.1"
#: the folder of their library; the package's own way to them imports its compiler first
_OPERATORS = Path("extension", "llm", "custom_ops")
#: ``executorch::runtime::get_pal_impl()``: what the platform does for ExecuTorch, its logging too, as a table that
#: whoever embeds it fills (executorch/runtime/platform/platform.h)
_PLATFORM = "_ZN10executorch7runtime12get_pal_implEv"
#: timestamp, level (a letter), file, function, line, message, its length
_EMIT = ctypes.CFUNCTYPE(
    None,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_char_p,
    ctypes.c_size_t,
)
_ERRORS = (ord("E"), ord("F"))
#: an "error" at every call: without that allocator the operators take their memory themselves
_NO_ERROR = b"No temp allocator provided"


class _Platform(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "init",
            "abort",
            "current_ticks",
            "ticks_to_ns_multiplier",
            "emit_log_message",
            "allocate",
            "free",
            "source_filename",
        )
    )


def _keep_errors_only(bindings: Any) -> None:
    """Let ExecuTorch write no line to standard error that tells of no error, in this process."""
    try:
        table = ctypes.CDLL(bindings.__file__)[_PLATFORM]
    except (OSError, AttributeError):  # a build that shows it to nobody goes on writing
        return
    table.restype = ctypes.POINTER(_Platform)
    platform = table().contents
    before = platform.emit_log_message
    write = _EMIT(before)

    def emit(
        when: int, level: int, file: bytes, function: bytes, line: int, message: bytes, length: int
    ) -> None:
        if level in _ERRORS and message != _NO_ERROR:
            write(when, level, file, function, line, message, length)

    ours = _EMIT(emit)
    platform.emit_log_message = ctypes.cast(ours, ctypes.c_void_p).value

    def restore() -> None:
        """Python answers no more while the process ends; `ours` is kept until then."""
        if platform.emit_log_message == ctypes.cast(ours, ctypes.c_void_p).value:
            platform.emit_log_message = before

    atexit.register(restore)


@lru_cache(maxsize=1)
def load_operators() -> Any:
    """ExecuTorch's bindings, once its operators are PyTorch's too. Raises Unavailable, with the line that mends it."""
    found = importlib.util.find_spec("executorch")
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"executorch is not installed; {_MEND}")
    torch = importlib.import_module("torch")
    try:
        bindings = importlib.import_module("executorch.extension.pybindings._C")
        _keep_errors_only(bindings)
        (file,) = Path(found.submodule_search_locations[0], _OPERATORS).glob("*custom_ops_aot_lib.*")
        torch.ops.load_library(file)
    except (ImportError, OSError, ValueError) as fault:  # half installed, or built for another PyTorch
        text = " ".join(str(fault).split())[:200]
        raise Unavailable(
            f"executorch's operators cannot be loaded beside PyTorch {torch.__version__} ({text}); {_MEND}"
        ) from None
    return bindings


def open_on(device: str) -> ExecuTorch:
    """ExecuTorch. Raises Unavailable for any device but the CPU, and where it is not installed."""
    bindings = load_operators()
    if device != "cpu":
        raise Unavailable(f"attnlab runs ExecuTorch's operators on the CPU only, not on {device}")
    return ExecuTorch(bindings)


class ExecuTorch(Torch):
    """See `attnlab.backend.library.Library`."""

    name = "executorch"
    lacking: ClassVar[Mapping[str, str]] = {"float64": "ExecuTorch's attention has no float64"}
    without_gradients = "ExecuTorch's operators have no backward pass"

    def __init__(self, bindings: Any) -> None:
        super().__init__("cpu")
        self._bindings = bindings

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self._bindings._unsafe_reset_threadpool(count)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "executorch": importlib.metadata.version("executorch")}
