"""ggml's mul_mat, soft_max_ext and mul_mat, on the CPU: what llama.cpp runs with flash attention switched off.

The operators of `build_attn_mha` in llama.cpp's src/llama-graph.cpp (https://github.com/ggml-org/llama.cpp, through
ggml-python, which pip compiles for this machine), in one graph, which is made in the first call: ``ggml_mul_mat`` of
keys and query with the precision flag GGML_PREC_F32, scale and tanh for a soft cap, ``ggml_soft_max_ext`` in
place, with ``ggml_soft_max_add_sinks``, and ``ggml_mul_mat`` with the values. In memory the keys are the innermost axis
of the values, as in llama.cpp without flash attention; `prepare` makes this layout, outside the timed call. llama.cpp's
copy that puts the heads of the output side by side is left out.

Every mask, and a bias, is an array of float32 that is added to the scores, made in the first call. It computes in
float32 only: in float16 ggml also rounds the weights before it multiplies them with the values.

Time: 4·b·h·n_q·n_k·d floating-point operations, and passes over the scores between; hidden scores are computed too.
Memory: the output and one array of the size of the score matrix, with a mask up to one more, O(n_q·n_k).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Made, Recipe, required
from attnlab.libraries.numpy_and_runtimes_library import run_ggml
from attnlab.workload.workload import Workload

required("ggml", extra="ggml")

LIBRARY = "ggml"
MEMORY = {"scores": 2.1, "outputs": 1.1}


def prepare(
    workload: Workload, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The arrays, the values in memory as (batch, kv_heads, d_v, n_k)."""
    return query, key, np.ascontiguousarray(value.swapaxes(2, 3)).swapaxes(2, 3)


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    attn_mask: NDArray[Any] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k), sinks (heads,).
    """
    batch, heads, n_q, _ = query.shape
    given = (query, key, value.swapaxes(2, 3))
    inputs = [one if one.strides[-1] == one.itemsize else np.ascontiguousarray(one) for one in given]
    if attn_mask is not None:
        inputs.append(_MASK(attn_mask, n_q, key.shape[2]))
    if sinks is not None:
        inputs.append(sinks.reshape(1, 1, 1, heads))
    recipe = Recipe(_plain, (scale, softcap, attn_mask is not None, sinks is not None))
    output = np.empty((batch, heads, n_q, value.shape[3]), dtype=np.float32)
    run_ggml(recipe, inputs, output)
    return output


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why ggml cannot do it, or None."""
    if workload.dtype != "float32":
        return "dtype", f"ggml rounds the weights to float16 before it multiplies them, got {workload.dtype}"
    return None


def _plain(
    scale: float, softcap: float | None, masked: bool, sinks: bool, module: Any, context: Any, inputs: Any
) -> Any:
    """The operators; inputs are query, key and transposed values, then mask and sinks if there are any."""
    query, key, value, *rest = inputs
    scores = module.ggml_mul_mat(context, key, query)
    module.ggml_mul_mat_set_prec(scores, module.GGML_PREC_F32)
    if softcap is not None:
        scores = module.ggml_scale_inplace(context, scores, scale / softcap)
        scores = module.ggml_tanh_inplace(context, scores)
        scores, scale = module.ggml_scale_inplace(context, scores, softcap), 1.0
    weights = module.ggml_soft_max_ext_inplace(context, scores, rest.pop(0) if masked else None, scale, 0.0)
    if sinks:
        module.ggml_soft_max_add_sinks(weights, rest[0])
    return module.ggml_mul_mat(context, value, weights)


def _made(attn_mask: NDArray[Any], n_q: int, n_k: int) -> NDArray[np.float32]:
    """What is added to the scores, its last two axes in full."""
    if attn_mask.dtype == np.bool_:
        attn_mask = np.where(attn_mask, 0.0, -math.inf)
    return np.array(np.broadcast_to(attn_mask, (*attn_mask.shape[:2], n_q, n_k)), np.float32, order="C")


_MASK = Made(_made)
