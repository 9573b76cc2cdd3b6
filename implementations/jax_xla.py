"""JAX's dot_product_attention as XLA compiles it (``implementation="xla"``), on the CPU and on CUDA.

``jax.nn.dot_product_attention`` (https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html) needs
arrays as (batch, length, heads, dim). The transpositions from (batch, heads, length, dim) and back are part of the
compiled function, and of the call. It is compiled (``jax.jit``) at the first call with its shapes, before the clock
starts. Matrix products use the highest precision, because XLA's default is lower on some devices (TF32).

`causal` and `window` are top-left. The output for a query that sees no key is finite but has no meaning; attnlab
overwrites it with zeros. The softmax is computed in float32 for all inputs.

Time: 4·b·h·n_q·n_k·d floating-point operations in batched matrix products, and passes over the scores between them,
as XLA fuses them; causal saves nothing. Memory: arrays of the size of the score matrix, in float32, O(n_q·n_k).
"""

from functools import partial
from typing import Any

import numpy as np

from attnlab.libraries.jax_and_mlx_library import Jax

jax = Jax.opened()

LIBRARY = "jax"


def declines(workload: Any) -> tuple[str, str] | None:
    """Why the function cannot do it, or None."""
    if workload.dtype == "float64":
        return "dtype", "jax.nn.dot_product_attention computes its softmax in float32, also for float64"
    if workload.dtype == "float16" and workload.device == "cpu":
        return (
            "dtype",
            "jax.nn.dot_product_attention asks for float16 products added in float32, which XLA has not on the CPU",
        )
    if workload.dtype == "bfloat16" and workload.device == "cpu" and workload.head_dim == 1:
        return "head_dim", "XLA aborts the process on some bfloat16 products of head_dim 1 on the CPU"
    if workload.value_dim != workload.head_dim:
        return (
            "value_dim",
            "jax.nn.dot_product_attention needs value_dim = head_dim, "
            f"got value_dim {workload.value_dim} and head_dim {workload.head_dim}",
        )
    return None


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool,
    scale: float,
    window: tuple[int, int] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    mask: Any = None,
    bias: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key and value (batch, kv_heads, n_k, d), mask and bias of four axes, broadcastable to
    (batch, heads, n_q, n_k).
    """
    lengths = None if key_lengths is None else np.array(key_lengths, np.int32)
    return _attention(query, key, value, mask, bias, lengths, scale, causal=causal, window=window)


@partial(jax.jit, static_argnames=("causal", "window"))
def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    key_lengths: Any,
    scale: Any,
    *,
    causal: bool,
    window: tuple[int, int] | None,
) -> Any:
    """The scale is an argument, so that another scale does not compile again."""
    if window is not None:  # -1 is no limit
        furthest = max(query.shape[2], key.shape[2])
        left, right = (furthest if side < 0 else side for side in window)
        window = left, right
    with jax.default_matmul_precision("highest"):
        output = jax.nn.dot_product_attention(
            *(array.swapaxes(1, 2) for array in (query, key, value)),
            bias=bias,
            mask=mask,
            scale=scale,
            is_causal=causal,
            key_value_seq_lengths=key_lengths,
            local_window_size=window,
            implementation="xla",
        )
    return output.swapaxes(1, 2)
