"""MLX's fast.scaled_dot_product_attention, on the CPU.

``mlx.core.fast.scaled_dot_product_attention`` (https://ml-explore.github.io/mlx/build/html/python/fast.html). MLX's own
kernels are for Metal and CUDA; on the CPU the same call is a graph of a matrix product, a softmax and another product,
computed by one thread with the BLAS that MLX was built with. In its wheels for Linux this is the reference BLAS.

`causal` is bottom-right. The scale is rounded to the inputs' format: in bfloat16 the error is 0.26 % for 0.3, and 0 for
1/8. The softmax is computed in float32 for all inputs.

Time: 4·b·h·n_q·n_k·d floating-point operations; causal saves nothing. Memory: arrays of the size of the score matrix,
O(n_q·n_k).
"""

from typing import Any

import numpy as np

from attnlab.libraries.library import required
from attnlab.workload.number_formats import round_to

mx = required("mlx.core", extra="mlx")

LIBRARY = "mlx"


def declines(workload: Any) -> tuple[str, str] | None:
    """Declines float64, and in 16 bits a scale that the format does not hold exactly."""
    if workload.dtype == "float64":
        return "dtype", "MLX computes the softmax in float32, also for float64"
    held = float(round_to(np.array(workload.scale), workload.dtype))
    if workload.dtype != "float32" and held != workload.scale:
        return (
            "scale",
            f"MLX rounds the scale to {workload.dtype} on the CPU: {workload.scale:g} becomes {held:g}",
        )
    return None


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float,
    causal_bottom_right: bool = False,
    attn_mask: Any = None,
    sinks: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,).
    """
    mask = "causal" if causal_bottom_right else attn_mask
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask, sinks=sinks)
