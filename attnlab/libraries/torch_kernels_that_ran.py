"""Which kernels PyTorch really ran in a call, by the record of its profiler."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

#: how the profiler names a call of what TorchDynamo and Inductor have compiled
_COMPILED = "Torch-Compiled Region"
_FUSED = ("_scaled_dot_product", "_native_multi_head")
#: operators that xFormers shares with PyTorch, and what extensions register
_OF_XFORMERS = ("_efficient_attention", "_flash_attention")
_OF_EXTENSIONS = re.compile(r"(?!aten)\w+::\w*(attn|attention|flash|sdpa)\w*")
_PLAIN = ("bmm", "mm", "baddbmm", "_softmax", "_safe_softmax")
#: words in the names of device kernels of attention, or of what it is made of
_ON_DEVICE = re.compile("flash|fmha|attn|attention|cutlass|sdpa|gemm|softmax|prefill", re.IGNORECASE)


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
