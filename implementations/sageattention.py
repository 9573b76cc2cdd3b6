"""SageAttention: attention in 8-bit integers and 8-bit floating point, on CUDA.

``sageattention.sageattn`` (https://github.com/thu-ml/SageAttention; arXiv:2411.10958): the product Q Kᵀ is computed in
8-bit integers, with one scale for every few rows, after the mean of the keys is subtracted. The weights and the values
are float16 or 8-bit floating point, depending on the device. So the kernel has a lower precision than its inputs. The
check holds it to the rounding of float16 or bfloat16, like every other backend, and may find it wrong.

Its arrays are (batch, heads, length, dim), copied if their last axis has gaps, float16 or bfloat16, head_dim up to 128,
padded to 64 or 128, equal value_dim, grouped heads; a causal mask only for as many queries as keys. It has no other
mask, no bias and no backward pass. A scale of 0 or below is folded into the query.

Time: 4·b·h·n_q·n_k·d operations, half of them on integers, and four passes over Q, K and V to convert them. Memory: the
output, and Q, K and V once more in their new formats, O(n).
"""

from typing import Any

from torch import Tensor

from attnlab.libraries.library import positive_scale, required
from attnlab.libraries.torch_attention import Limits, dense_rows, refusal
from attnlab.workload.workload import Workload

sageattention: Any = required("sageattention", extra="sageattention")

LIBRARY = "torch"
MEMORY = {"scores": 0, "outputs": 6.1}

_LIMITS = Limits("SageAttention", largest_head_dim=128, backward=False)


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool = False, enable_gqa: bool = False
) -> Tensor:
    """softmax(scale · Q Kᵀ) V, or over keys 0 to i for query i.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (batch, kv_heads, n_k, d).
    """
    query, scale = positive_scale(query, scale)
    output: Tensor = sageattention.sageattn(
        *dense_rows(query, key, value), tensor_layout="HND", is_causal=causal, sm_scale=scale
    )
    return output


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why SageAttention cannot do it, or None."""
    reason = _LIMITS.declines(workload)
    if reason:
        return reason
    if workload.causal and workload.queries != workload.keys:
        return (
            "causal",
            "SageAttention's causal mask is for as many queries as keys, "
            f"got {workload.queries} and {workload.keys}",
        )
    return refusal(attend, workload)
