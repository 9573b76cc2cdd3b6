"""ONNX Runtime's own operator MultiHeadAttention (com.microsoft), on the CPU.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MultiHeadAttention. Without a
mask it runs a fused kernel, online softmax over tiles that fit the L2 cache; with a mask it computes the scores, adds
the mask and normalises them. Its arrays are (batch, length, heads · dim), the layout of a projection's result.
`prepare` makes this layout, outside the timed call; the operator moves the heads outside itself, within the timed call.
A session is made in the first call, one for each scale and kind of mask, and is bound to NumPy's memory.

`unidirectional` is top-left, but the last query sees every key that is given (1.31). So keys beyond the queries are
left out; with several batch elements this copies the other keys in every call. Key lengths are its `key_padding_mask`;
`mask_filter_value` is set to -inf for them, because with its default of −10000 hidden keys get weight if scores are as
large. Any other mask and a bias are an array of numbers that is added to the scores, which is made in the first call.
It has no soft cap, no sinks, no grouped heads and no float16. A scale of 0 or below is folded into the query, because
for the operator a scale of 0 means none.

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of MLAS; hidden scores are computed too. Memory: the
output, query, key and value once more with the heads outside, O(n); with a mask the scores and the mask beside them,
O(n_q·n_k).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Made, Recipe, positive_scale, required
from attnlab.libraries.numpy_and_runtimes_library import one_operator, packed, run_onnx, unpacked
from attnlab.workload.workload import Workload

required("onnx", "onnxruntime", extra="onnxruntime")

LIBRARY = "onnxruntime"
MEMORY = {"scores": 3.1, "outputs": 5.1}

_OPSET = 23
_ORDER = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias")


def prepare(
    workload: Workload, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The arrays, in memory as (batch, length, heads, dim)."""
    q, k, v = (unpacked(packed(one), one.shape[1]) for one in (query, key, value))
    return q, k, v


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    causal: bool = False,
    key_lengths: tuple[int, ...] | None = None,
    attn_mask: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)
    batch, heads, n_q, _ = query.shape
    if causal and key.shape[2] > n_q:  # the last query sees all keys that the operator gets
        key, value = key[:, :, :n_q], value[:, :, :n_q]
    n_k, value_dim = value.shape[2:]
    inputs = {"query": packed(query), "key": packed(key), "value": packed(value)}
    if key_lengths is not None:
        inputs["key_padding_mask"] = np.minimum(key_lengths, n_k, dtype=np.int32)
    if attn_mask is not None:
        inputs["attention_bias"] = _ADDED(attn_mask, n_q, n_k)
    output = np.empty((batch, n_q, heads * value_dim), dtype=query.dtype)
    model = Recipe(_model, (heads, scale, causal, key_lengths is not None, attn_mask is not None))
    run_onnx(model, inputs, output)
    return unpacked(output, heads)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why ONNX Runtime's operator cannot do it, or None."""
    if workload.dtype != "float32":
        return (
            "dtype",
            f"ONNX Runtime's MultiHeadAttention computes in float32 only on the CPU, not in {workload.dtype}",
        )
    return None


def _model(heads: int, scale: float, causal: bool, lengths: bool, added: bool) -> bytes:
    """A model of one MultiHeadAttention."""
    given = (True, True, True, False, lengths, added)
    types = {
        name: ("int32" if name == "key_padding_mask" else "float32") if there else ""
        for name, there in zip(_ORDER, given, strict=True)
    }
    while not list(types.values())[-1]:
        types.popitem()
    return one_operator(
        "MultiHeadAttention",
        _OPSET,
        types,
        "float32",
        own=True,
        num_heads=heads,
        scale=scale,
        unidirectional=int(causal),
        mask_filter_value=-math.inf,
    )


def _added(attn_mask: NDArray[Any], n_q: int, n_k: int) -> NDArray[np.float32]:
    """What is added to the scores, with its last two axes in full."""
    if attn_mask.dtype == np.bool_:
        attn_mask = np.where(attn_mask, np.float32(0), np.float32(-np.inf))
    return np.array(np.broadcast_to(attn_mask, (*attn_mask.shape[:2], n_q, n_k)), np.float32, order="C")


_ADDED = Made(_added)
