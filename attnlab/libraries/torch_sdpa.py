"""One kernel of PyTorch's scaled_dot_product_attention, forced for one call at a time, and why it cannot run.

Which kernels the dispatcher may choose is a state of the whole process. It is set before every call and put
back after it, so that a caller's own choice holds everywhere else. PyTorch's context manager ``sdpa_kernel``
does that for 9 to 14 µs a call (PyTorch 2.13, CPU; a whole call at n = 64 takes 21 µs); the switches under
``torch.backends.cuda``, which the CPU dispatcher obeys too, do it for 2 to 3 µs, this class included.
Either is on the clock. Leaving the state set between calls would cost nothing and leak.

PyTorch is imported when a kernel is first asked for, never with this module.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any, Literal

from attnlab.problem.mask_kinds import Causal
from attnlab.problem.masks import Mask
from attnlab.problem.workload import GIVEN, Workload

if TYPE_CHECKING:
    from torch import Tensor

Kernel = Literal["flash", "efficient", "math", "cudnn"]

#: a scale below it is folded into the query: the smallest normal number of float32
LEAST_SCALE = 2.0**-126

_KERNELS: tuple[Kernel, ...] = ("flash", "efficient", "math", "cudnn")
_SWITCHES = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
_CONTEXTS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION")


class ForcedKernel:
    """``scaled_dot_product_attention`` with one kernel allowed and no other.

    Not for several threads at once: the dispatcher's state is the process's, as it is with ``sdpa_kernel``.
    """

    def __init__(self, kernel: Kernel) -> None:
        cuda = importlib.import_module("torch.backends.cuda")
        self._kernel: Kernel = kernel
        self._attention: Any = importlib.import_module("torch.nn.functional").scaled_dot_product_attention
        self._allowed = [getattr(cuda, f"{switch}_enabled") for switch in _SWITCHES]
        self._allow = [getattr(cuda, f"enable_{switch}") for switch in _SWITCHES]
        self._wanted = [name == kernel for name in _KERNELS]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        scale: float,
        attn_mask: Tensor | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(scale · Q Kᵀ + bias) V over the keys that are seen, by this kernel.

        query: (batch, heads, n_q, d), key: (batch, kv_heads, n_k, d), value: (…, n_k, d_v), attn_mask broadcastable to
        (batch, heads, n_q, n_k). A scale of 0 or below is folded into the query (`positive_scale`), and an input whose
        last axis is not contiguous is copied. Raises RuntimeError where the kernel cannot.
        """
        if scale < LEAST_SCALE:
            query, scale = positive_scale(query, scale)
        if not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        before = [allowed() for allowed in self._allowed]
        try:
            for allow, wanted in zip(self._allow, self._wanted, strict=True):
                allow(wanted)
            output: Tensor = self._attention(
                query, key, value, attn_mask=attn_mask, is_causal=causal, scale=scale, enable_gqa=enable_gqa
            )
            return output
        finally:
            for allow, was_allowed in zip(self._allow, before, strict=True):
                allow(was_allowed)

    def declines(self, workload: Workload) -> str | None:
        """Why this kernel cannot do `workload`, or None: by what is known of it, else by a tiny trial."""
        if self._kernel == "math":
            return None  # it can do all that the keywords say
        return _known_limit(self._kernel, workload) or _refusal(self._kernel, _trial(workload))


def positive_scale(query: Any, scale: float) -> tuple[Any, float]:
    """(query', scale') with the same logits and scale' > 0, for a scale below `LEAST_SCALE`.

    The fused kernels mask with -inf and multiply by the scale afterwards, in float32: 0·(-inf) and -1·(-inf)
    turn every causal row into NaN (PyTorch 2.13, CPU flash kernel). A scale that float32 takes for zero is
    such a 0.
    """
    return (-query, -scale) if scale <= -LEAST_SCALE else (query * scale, 1.0)


def _known_limit(kernel: Kernel, workload: Workload) -> str | None:
    """The limits that PyTorch documents or that its dispatcher checks, said so that a person understands."""
    if workload.device == "cpu" and kernel in ("efficient", "cudnn"):
        name = {"efficient": "memory-efficient kernel", "cudnn": "cuDNN kernel"}[kernel]
        return f"PyTorch has no {name} for the CPU; it runs on CUDA only"
    if kernel == "flash" and workload.value_dim != workload.head_dim:
        return (
            "the flash kernel needs value_dim = head_dim, "
            f"got value_dim {workload.value_dim} and head_dim {workload.head_dim}"
        )
    if workload.device == "cpu":
        return None
    if kernel in ("flash", "cudnn") and workload.dtype not in ("float16", "bfloat16"):
        name = {"flash": "flash", "cudnn": "cuDNN"}[kernel]
        return f"the {name} kernel computes in float16 and bfloat16 only on CUDA, not in {workload.dtype}"
    if kernel == "efficient" and workload.dtype == "float64":
        return "the memory-efficient kernel has no float64"
    if kernel == "flash" and workload.causal == "top_left" and workload.queries != workload.keys:
        return (
            "the flash kernel's causal mask is bottom-right on CUDA, so PyTorch refuses it "
            f"where queries and keys differ, got {workload.queries} and {workload.keys}"
        )
    return None


def _trial(workload: Workload) -> Workload:
    """What kernels distinguish of it, at small sizes: which length is longer, a length of 1, grouped heads."""
    queries, keys = workload.queries, workload.keys
    short = 1 if min(queries, keys) == 1 else 8
    if queries == keys:
        queries = keys = 1 if queries == 1 else 16
    else:
        queries, keys = (short, 16) if queries < keys else (16, short)
    flagged = workload.bias == "none" and workload.masked == Mask((Causal(),))
    masked = workload.mask == GIVEN or (bool(workload.masked) and not flagged)
    return Workload(
        device=workload.device,
        dtype=workload.dtype,
        heads=2,
        kv_heads=2 if workload.heads == workload.kv_heads else 1,
        queries=queries,
        keys=keys,
        head_dim=workload.head_dim,
        value_dim=workload.value_dim,
        causal="top_left" if flagged else False,
        bias="none" if workload.bias == "none" else GIVEN,
        mask=GIVEN if masked and workload.bias == "none" else "",
        direction="training" if workload.backward else "forward",
    )


@functools.cache
def _refusal(kernel: Kernel, trial: Workload) -> str | None:
    """PyTorch's own reason against a trial, found by trying, or None.

    Kept, because PyTorch gives some of its reasons only once a process. Tried under ``sdpa_kernel``, because
    only where no kernel at all is left does the dispatcher explain itself.
    """
    torch: Any = importlib.import_module("torch")
    attention: Any = importlib.import_module("torch.nn.attention")
    backend = getattr(attention.SDPBackend, _CONTEXTS[_KERNELS.index(kernel)])
    made = {"dtype": getattr(torch, trial.dtype), "device": trial.device}
    arrays = [
        torch.zeros(1, heads, length, dim, requires_grad=trial.backward, **made)
        for heads, length, dim in (
            (trial.heads, trial.queries, trial.head_dim),
            (trial.kv_heads, trial.keys, trial.head_dim),
            (trial.kv_heads, trial.keys, trial.value_dim),
        )
    ]
    added = torch.zeros(1, 1, trial.queries, trial.keys, **made)
    mask = added if trial.bias == GIVEN else added == 0 if trial.mask == GIVEN else None
    asked = {"attn_mask": mask, "is_causal": bool(trial.causal), "enable_gqa": trial.heads != trial.kv_heads}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            with attention.sdpa_kernel(backend), torch.enable_grad():
                output = torch.nn.functional.scaled_dot_product_attention(*arrays, **asked)
            if trial.backward:
                torch.autograd.grad(output, arrays, torch.zeros_like(output))
        except RuntimeError as refused:
            return _one_line([str(warning.message) for warning in found], str(refused))
    return None


def _one_line(messages: list[str], error: str) -> str:
    """PyTorch's warnings as one readable line; its error where no warning says anything.

    Left out: where in its sources a warning was raised, headings that end in a colon, what is said twice,
    and that the kernels which were not asked for are disabled.
    """
    reasons: list[str] = []
    for message in messages:
        reason = " ".join(message.partition("(Triggered internally")[0].split())
        if reason and not reason.endswith(":") and "runtime disabled" not in reason and reason not in reasons:
            reasons.append(reason)
    said = "; ".join(reasons) or " ".join(error.partition("\n")[0].split())
    return f"PyTorch says: {said}"
