"""ExecuTorch's attention for language models, on the CPU.

``torch.ops.llama.custom_sdpa``, which ExecuTorch puts into the Llama models that it exports
(https://github.com/pytorch/executorch, extension/llm/custom_ops), on PyTorch's tensors: tiles and online softmax, on
its own threads. It reads arrays of shape (batch, length, heads, dim), in which a model keeps its cache; `prepare` makes
this layout.

A mask and a bias are one array of float32 for all heads and batch elements, made in the first call; a mask or a bias
that differs between heads or elements is declined. A causal mask is a flag. The operator gets the position of the first
query, and reads the keys up to the position of the last query, so there cannot be more queries than keys. A scale of 0
or below is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations, causal about half of them. Memory: the output, and a tile for each
thread, O(n).
"""

import torch
from torch import Tensor

from attnlab.errors import Declined
from attnlab.libraries.library import Made, positive_scale
from attnlab.libraries.torch_library import ExecuTorch
from attnlab.workload.workload import Workload

ExecuTorch.opened()

LIBRARY = "executorch"
MEMORY = {"scores": 0, "outputs": 4.1}

_ONE_FOR_ALL = "ExecuTorch's operator takes one mask for all batch elements and heads"


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why the operator cannot do it, or None."""
    if workload.value_dim != workload.head_dim:
        return (
            "value_dim",
            f"ExecuTorch's operator needs value_dim = head_dim, got {workload.value_dim} and {workload.head_dim}",
        )
    if workload.queries > workload.keys:
        return (
            "queries",
            "ExecuTorch's operator takes the queries for the last of the keys, "
            f"got {workload.queries} queries and {workload.keys} keys",
        )
    if workload.key_lengths is not None and workload.batch > 1:
        return "key_lengths", f"{_ONE_FOR_ALL}, and key_lengths differ by batch element"
    if workload.bias in ("normal", "alibi") and workload.heads > 1:
        return "bias", f"{_ONE_FOR_ALL}, and this bias differs by head"
    return None


def prepare(workload: Workload, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The arrays as (batch, length, heads, dim), contiguous."""
    query, key, value = (array.transpose(1, 2).contiguous() for array in (query, key, value))
    return query, key, value


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool = False,
    causal_bottom_right: bool = False,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, n_q, heads, d), key (batch, n_k, kv_heads, d), value likewise, attn_mask broadcastable to
    (1, 1, n_q, n_k). Returns (batch, heads, n_q, d). Raises Declined for an attn_mask that differs by batch or head.
    """
    query, scale = positive_scale(query, scale)
    added = None if attn_mask is None else _numbers(attn_mask, query.shape[1], key.shape[1])
    start = 0 if causal or attn_mask is not None else key.shape[1] - query.shape[1]
    flag = causal or causal_bottom_right
    output: Tensor = torch.ops.llama.custom_sdpa(query, key, value, start, added, 0.0, flag, scale)
    return output.transpose(1, 2)


def _added(attn_mask: Tensor, n_q: int, n_k: int) -> Tensor:
    """The mask as numbers of float32 to be added, (n_q, n_k)."""
    if attn_mask.shape[:2] != (1, 1):
        raise Declined(f"{_ONE_FOR_ALL}, got one of shape {tuple(attn_mask.shape)}")
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, float("-inf"))
    return attn_mask[0, 0].to(torch.float32).expand(n_q, n_k).contiguous()


_numbers = Made(_added)
