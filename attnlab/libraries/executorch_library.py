"""ExecuTorch's operators on PyTorch's tensors: where they are loaded from, and their own threads."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnlab.contract.errors import Unavailable
from attnlab.libraries.torch_library import Torch

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "torch"

#: they need nothing else of what the package asks for, which is more than attnlab is in all
_MEND = "pip install --no-deps executorch==1.5.1"
#: the folder of their library; the package's own way to them imports its compiler first
_OPERATORS = Path("extension", "llm", "custom_ops")


@lru_cache(maxsize=1)
def load_operators() -> Any:
    """ExecuTorch's bindings, once its operators are PyTorch's too. Raises Unavailable, with the line that mends it."""
    found = importlib.util.find_spec("executorch")
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"executorch is not installed; {_MEND}")
    torch = importlib.import_module("torch")
    try:
        bindings = importlib.import_module("executorch.extension.pybindings._C")
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
    """See `attnlab.contract.library.Library`."""

    name = "executorch"

    def __init__(self, bindings: Any) -> None:
        super().__init__("cpu")
        self._bindings = bindings

    def declines(self, dtype: str) -> str | None:
        return "ExecuTorch's attention has no float64" if dtype == "float64" else None

    def no_gradients(self) -> str | None:
        return "ExecuTorch's operators have no backward pass"

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self._bindings._unsafe_reset_threadpool(count)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "executorch": importlib.metadata.version("executorch")}
