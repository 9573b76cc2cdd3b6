"""JAX's dot_product_attention by cuDNN's fused kernel (``implementation="cudnn"``), on CUDA.

``jax.nn.dot_product_attention`` needs arrays as (batch, length, heads, dim). The transpositions from (batch, heads,
length, dim) and back are part of the compiled function, and of the call. JAX reports what cuDNN refuses when the call
is lowered, which allocates and computes nothing. It is compiled at the first call with its shapes, before the clock
starts.

`causal` is top-left. float16 and bfloat16 only.

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves up to half of them. Memory: the output and a workspace
linear in n; a boolean mask is converted to numbers that are added, O(n_q·n_k).
"""

from functools import cache, partial
from typing import Any

import numpy as np

from attnlab.libraries.jax_and_mlx_library import Jax
from attnlab.libraries.library import positive_scale

jax = Jax.opened()

LIBRARY = "jax"
KERNEL = "cudnn"


def declines(workload: Any) -> tuple[str, str] | None:
    """Why the kernel cannot do it, or None: a known limit, or the error of JAX when it lowers such a call."""
    if workload.device != "cuda":
        return "device", "cuDNN's attention runs on CUDA only"
    if workload.dtype not in ("float16", "bfloat16"):
        return "dtype", f"cuDNN's attention computes in float16 and bfloat16, not in {workload.dtype}"
    if workload.value_dim != workload.head_dim:
        return (
            "value_dim",
            "jax.nn.dot_product_attention needs value_dim = head_dim, "
            f"got value_dim {workload.value_dim} and head_dim {workload.head_dim}",
        )
    shape = workload.shape
    query = (shape.batch, shape.heads, shape.queries, workload.head_dim)
    key = (shape.batch, workload.kv_heads, shape.keys, workload.head_dim)
    bias = (1, shape.heads, shape.queries, shape.keys) if workload.bias != "none" else None
    return _refusal(workload.dtype, query, key, bias, workload.backward)


@cache
def _refusal(
    dtype: str, query: tuple[int, ...], key: tuple[int, ...], bias: tuple[int, ...] | None, backward: bool
) -> tuple[str, str] | None:
    """The error of JAX for such a call, or None."""
    asked = [jax.ShapeDtypeStruct(one, dtype) for one in (query, key, key)]
    added = None if bias is None else jax.ShapeDtypeStruct(bias, dtype)

    def summed(query: Any, key: Any, value: Any, bias: Any) -> Any:
        return _attention(query, key, value, None, bias, None, 1.0, causal=False).sum()

    tried = jax.grad(summed, argnums=(0, 1, 2)) if backward else summed
    try:
        jax.jit(tried).lower(*asked, added)
    except (NotImplementedError, RuntimeError, ValueError) as refused:
        return "", f"JAX says: {' '.join(str(refused).split())[:200]}"
    return None


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool,
    scale: float,
    key_lengths: tuple[int, ...] | None = None,
    mask: Any = None,
    bias: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key and value (batch, kv_heads, n_k, d), mask and bias of four axes, broadcastable to
    (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)  # else cuDNN returns NaN (JAX 0.11, H100)
    lengths = None if key_lengths is None else np.array(key_lengths, np.int32)
    return _attention(query, key, value, mask, bias, lengths, scale, causal=causal)


@partial(jax.jit, static_argnames=("causal", "scale"))
def _attention(
    query: Any, key: Any, value: Any, mask: Any, bias: Any, key_lengths: Any, scale: float, *, causal: bool
) -> Any:
    """The scale is a constant of the kernel: each scale is compiled separately."""
    output = jax.nn.dot_product_attention(
        *(array.swapaxes(1, 2) for array in (query, key, value)),
        bias=bias,
        mask=mask,
        scale=scale,
        is_causal=causal,
        key_value_seq_lengths=key_lengths,
        implementation="cudnn",
    )
    return output.swapaxes(1, 2)
