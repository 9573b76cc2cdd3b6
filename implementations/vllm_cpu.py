"""vLLM's attention over a paged cache, on the CPU.

``cpu_attention_with_kv_cache`` of vLLM's build for the CPU
(https://github.com/vllm-project/vllm, csrc/cpu), on PyTorch's tensors, without vLLM itself: what its engine calls in a layer,
for a prefill or a decode step, when the cache holds the keys already. Preparing a workload therefore
packs the queries as (tokens, heads, dim), fills pages of 128 keys in an order of its own as the engine would
(``cpu_attn_reshape_and_cache``), and plans how the work is shared out (``get_scheduler_metadata``), which the engine does once
for all layers of a step; the call is the attention alone, with its output.

Causal masks and windows are bottom-right, lengths are told by batch element; a causal mask is aligned with the end
of an element's own keys, so that one with lengths is declined. ALiBi grows with the distance to the left only, and is taken with a causal mask.

Time: 4·b·h·n_q·n_k·d floating-point operations, over the keys that are seen. Memory: the output, and a tile for each
thread; O(n).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.contract.workload import GIVEN, Workload
from attnlab.libraries.torch_sdpa import LEAST_SCALE, positive_scale
from attnlab.libraries.vllm_library import instructions, load_operators

_OPERATORS = load_operators()

LIBRARY = "vllm"
MEMORY = {"scores": 0, "outputs": 2.1}

_PAGE = 128
#: head dimensions that vLLM compiles its attention for: another would end the process
_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


class Pages(NamedTuple):
    """Keys and values in pages, (pages, kv_heads, 128, d) each, and where the keys of each batch element are.

    table : (batch, pages of an element), int32. lengths : keys of each element, int32. starts : of each element's
    queries among all, and their end, int32. isa : the instructions that the pages are packed for.
    """

    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor
    starts: Tensor
    isa: str
