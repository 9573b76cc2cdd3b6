"""vLLM's attention over a paged cache, on the CPU.

``cpu_attention_with_kv_cache`` of vLLM's build for the CPU (https://github.com/vllm-project/vllm, csrc/cpu), loaded
without vLLM itself. vLLM's engine calls it in each layer, for a prefill or a decode step, once the cache holds the
keys. `prepare` does what the engine has done by then: it lays out the queries as (tokens, heads, dim), fills pages of
128 keys (``cpu_attn_reshape_and_cache``), and plans how the work is divided (``get_scheduler_metadata``, once per step
for all layers). The call is the attention alone, with its output.

Causal masks and windows are bottom-right. With key lengths they would be aligned with the keys of each batch element,
so this is declined, and so are windows that look ahead. ALiBi is the signed distance, which is right only if no later
key is seen. A head_dim for which it is not compiled would end the process, so it is declined.

Time: 4·b·h·n_q·n_k·d floating-point operations, over the keys that are seen. Memory: the output, and a tile for each
thread, O(n).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnlab.backends.keywords import told
from attnlab.libraries.torch_attention import tensor_of
from attnlab.libraries.torch_library import Vllm, instructions
from attnlab.workload.workload import Workload

_OPERATORS = Vllm.opened()

LIBRARY = "vllm"
MEMORY = {"scores": 0, "outputs": 2.1}

_PAGE = 128
_MASKS = ("causal_bottom_right", "window_bottom_right", "key_lengths")
#: head dimensions that vLLM compiles its attention for: another would end the process
_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


class Cache:
    """Keys and values in pages, and the plans of calls on them.

    keys, values : (pages, kv_heads, 128, d). table : the pages of each batch element, (batch, pages), int32. lengths :
    keys of each element, int32. starts : where each element's queries begin among all, and their end, int32.
    """

    def __init__(self, workload: Workload, key: Tensor, value: Tensor, lengths: Any) -> None:
        batch, heads, n_k, dim = key.shape
        pages = -(-n_k // _PAGE)
        self.isa = _isa(workload)
        self.queries = workload.heads
        self.keys, self.values = (
            torch.zeros((batch * pages, heads, _PAGE, dim), dtype=key.dtype) for _ in range(2)
        )
        self.table = torch.arange(batch * pages, dtype=torch.int32).reshape(batch, pages)
        self.lengths = torch.tensor(lengths or (n_k,) * batch, dtype=torch.int32)
        self.starts = torch.arange(batch + 1, dtype=torch.int32) * workload.queries
        slots = torch.arange(batch)[:, None] * pages * _PAGE + torch.arange(n_k)
        tokens = (one.transpose(1, 2).reshape(batch * n_k, heads, dim).contiguous() for one in (key, value))
        _OPERATORS.cpu_attn_reshape_and_cache(*tokens, self.keys, self.values, slots.flatten(), self.isa)
        self._plans: dict[tuple[bool, int, int], Tensor] = {}

    def plan(self, causal: bool, window: int) -> Tensor:
        """How the work is divided among the threads; made once for each number of threads."""
        asked = causal, window, torch.get_num_threads()
        if asked not in self._plans:
            _, heads, _, dim = self.keys.shape
            self._plans[asked] = _OPERATORS.get_scheduler_metadata(
                len(self.lengths),
                self.queries,
                heads,
                dim,
                self.lengths,
                self.keys.dtype,
                self.starts,
                causal,
                window,
                self.isa,
                True,
                None,
            )
        return self._plans[asked]


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why vLLM cannot do it, or None: the process would end, or the result would differ."""
    if workload.value_dim != workload.head_dim:
        got = f"got {workload.value_dim} and {workload.head_dim}"
        return "value_dim", f"vLLM's attention needs value_dim = head_dim, {got}"
    if workload.head_dim not in _DIMS:
        dims = ", ".join(map(str, _DIMS))
        return "head_dim", f"vLLM's attention is compiled for head_dim {dims}, not for {workload.head_dim}"
    shown = told(workload, _MASKS) or {}
    causal, _ = _diagonal(shown)
    if "window_bottom_right" in shown and not causal:
        return "window", "vLLM's windows end at the query's own position, and this one looks ahead"
    if causal and "key_lengths" in shown:
        return "key_lengths", "vLLM aligns a causal mask with the keys that a batch element has, not with all"
    if causal and workload.queries > workload.keys:
        got = f"got {workload.queries} queries and {workload.keys} keys"
        return "queries", f"vLLM takes the queries for the last of the keys, {got}"
    if workload.bias == "alibi" and not causal:
        return "bias", "vLLM's ALiBi raises the scores of later keys: it needs a causal mask"
    return None


def prepare(workload: Workload, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Cache, None]:
    """The queries as tokens, and the filled cache, values included, with the plan of this call."""
    shown = told(workload, _MASKS) or {}
    cache = Cache(workload, key, value, shown.get("key_lengths"))
    cache.plan(*_diagonal(shown))
    return query.transpose(1, 2).flatten(0, 1).contiguous(), cache, None


def attend(
    query: Tensor,
    key: Cache,
    value: None,
    *,
    scale: float,
    causal_bottom_right: bool = False,
    window_bottom_right: tuple[int, int] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch · n_q, heads, d), key as prepared; key_lengths are in it already. Returns (batch, heads, n_q, d).
    """
    causal, window = _diagonal(
        {"causal_bottom_right": causal_bottom_right, "window_bottom_right": window_bottom_right}
    )
    output = torch.empty_like(query)
    _OPERATORS.cpu_attention_with_kv_cache(
        query,
        key.keys,
        key.values,
        output,
        key.starts,
        key.lengths,
        scale,
        causal,
        None if alibi_slopes is None else tensor_of(alibi_slopes, torch.float32),
        window,
        key.table,
        softcap or 0.0,
        key.plan(causal, window),
        sinks.float() if sinks is not None and sinks.dtype == torch.float16 else sinks,
        None,
    )
    return output.view(len(key.lengths), -1, *output.shape[1:]).transpose(1, 2)


def _diagonal(shown: dict[str, Any]) -> tuple[bool, int]:
    """(causal, window) as vLLM has them: a window of w is a query's own key and the w - 1 before it, -1 is none."""
    left, right = shown.get("window_bottom_right") or (-1, -1)
    return shown.get("causal_bottom_right", False) or right == 0, -1 if left < 0 else left + 1


def _isa(workload: Workload) -> str:
    """The instructions for which pages are packed, by the rule of vLLM's own backend."""
    if workload.head_dim % 32:
        return "vec16"
    return "amx" if workload.dtype == "bfloat16" and "amx_bf16" in instructions() else "vec"
