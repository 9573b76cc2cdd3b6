"""scaled_dot_product_attention forced to its flash kernel: tiles and online softmax, CPU and CUDA.

Time: 4·b·h·n_q·n_k·d floating-point operations in one pass over tiles, causal about half of them. Memory:
the output, one number per row and a workspace that does not grow with n, O(n).

On CUDA it computes in float16 and bfloat16 only. It takes a causal mask only for as many queries as keys, because its
own mask is aligned bottom-right. Other formats and other causal masks are declined.

If a score exceeds the range of float32, the CPU kernel returns 0 in float16 and bfloat16, while the other kernels
return NaN (PyTorch 2.13): the output does not show such an overflow.

Forcing takes two to three microseconds, which are part of each timed call; see attnlab.libraries.torch_attention.
"""

from typing import Any

import torch
from torch import Tensor

from attnlab.libraries.library import positive_scale
from attnlab.libraries.torch_attention import ForcedKernel
from attnlab.workload.workload import LOG_SUM, Workload

LIBRARY = "torch"
KERNEL = "_scaled_dot_product_flash_attention"
EMPTY_ROWS = {"cpu": "zeros"}
MEMORY = {"scores": 0, "outputs": 4.1}

_forced = ForcedKernel("flash")
attend = _forced.attend


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why this kernel cannot do `workload`, or None."""
    if workload.device != "cpu" and LOG_SUM in workload.results:
        return "direction", "its ln Z is read from the CPU's kernel only"
    return _forced.declines(workload)


def attend_with_log_sum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """What `attend` returns, and ln Z, (batch, heads, n_q), −inf where no key is seen; on the CPU.

    This calls the operator behind `scaled_dot_product_attention`, which keeps ln Z for the backward pass. It takes only
    numbers as attn_mask; the dispatcher converts booleans to numbers too.
    """
    query, scale = positive_scale(query, scale)
    if not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, log_sum = operator(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=scale)
    if attn_mask is not None:  # the operator returns 0 for a row that sees no key (PyTorch 2.13)
        log_sum = log_sum.masked_fill(attn_mask.isneginf().all(dim=-1), float("-inf"))
    return output, log_sum
