"""The standard ONNX operator Attention in ONNX Runtime, on the CPU.

https://onnx.ai/onnx/operators/onnx__Attention.html, opset 24. The model has this operator only. A session is
made in the first call, one for each scale, cap and kind of mask, and is bound to NumPy's memory
(IO binding), so that no array is copied. Arrays in the layout of a projection's result are passed with three axes,
which the operator supports.

`is_causal` is top-left, but bottom-right with `nonpad_kv_seqlen`. So a bottom-right mask is expressed by
`nonpad_kv_seqlen` = all keys. Key lengths are `nonpad_kv_seqlen` too. A causal mask would then be aligned to each
length, so with a causal mask the lengths are an array. The kernel needs the last two axes of a mask in full, which are
made in the first call. It refuses a scale of 0 or below, which is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of MLAS; causal hides scores and saves
no work. Memory: the output and one array of the size of the score matrix, for a mask up to one more,
O(n_q·n_k).
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Made, Recipe, positive_scale, required
from attnlab.libraries.numpy_and_runtimes_library import one_operator, packed, run_onnx, unpacked

required("onnx", "onnxruntime", extra="onnxruntime")

LIBRARY = "onnxruntime"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 2.1, "outputs": 1.1}

_NAMES = ("query", "key", "value")
#: the first opset in which it takes key lengths
_OPSET = 24


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    causal: bool = False,
    causal_bottom_right: bool = False,
    key_lengths: tuple[int, ...] | None = None,
    attn_mask: NDArray[Any] | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)
    batch, of_query, n_q, _ = query.shape
    n_k, value_dim = value.shape[2:]
    hides = causal or causal_bottom_right
    if hides and key_lengths is not None:
        attn_mask, key_lengths = _there(key_lengths, n_k), None
    if causal_bottom_right:
        key_lengths = (n_k,) * batch
    lengths = key_lengths is not None
    heads = _packed_heads(query, key, value)
    mask = "" if attn_mask is None else str(attn_mask.dtype)
    model = Recipe(_attention, (str(query.dtype), hides, scale, softcap or 0.0, mask, lengths, heads))
    laid = packed if heads else np.ascontiguousarray
    inputs = dict(zip(_NAMES, (laid(array) for array in (query, key, value)), strict=True))
    if attn_mask is not None:
        whole = attn_mask.shape[2:] == (n_q, n_k)
        inputs["attn_mask"] = attn_mask if whole else _FULL(attn_mask, n_q, n_k)
    if lengths:
        inputs["nonpad_kv_seqlen"] = np.array(key_lengths, dtype=np.int64)
    shape = (batch, n_q, of_query * value_dim) if heads else (batch, of_query, n_q, value_dim)
    output = np.empty(shape, dtype=query.dtype)
    run_onnx(model, inputs, output)
    return unpacked(output, of_query) if heads else output


def _packed_heads(*arrays: NDArray[Any]) -> tuple[int, ...]:
    """The heads of query and key if the arrays lie in memory as (batch, length, heads, dim), else ()."""
    if all(array.flags.c_contiguous for array in arrays):
        return ()
    if all(array.swapaxes(1, 2).flags.c_contiguous for array in arrays):
        return arrays[0].shape[1], arrays[1].shape[1]
    return ()


def _full(attn_mask: NDArray[Any], n_q: int, n_k: int) -> NDArray[Any]:
    """The mask with its last two axes in full, as the kernel needs it."""
    return np.ascontiguousarray(np.broadcast_to(attn_mask, (*attn_mask.shape[:2], n_q, n_k)))


_FULL = Made(_full)


@functools.lru_cache(maxsize=1)
def _there(key_lengths: tuple[int, ...], n_k: int) -> NDArray[np.bool_]:
    """True for the keys within the lengths, (batch, 1, 1, n_k)."""
    return np.asarray(np.arange(n_k) < np.array(key_lengths)[:, None, None, None])


def _attention(
    dtype: str,
    causal: bool,
    scale: float,
    softcap: float,
    mask: str,
    lengths: bool,
    heads: tuple[int, ...],
) -> bytes:
    """A model of one Attention; `mask` is the dtype of the mask or "", `heads` those of packed arrays or ()."""
    types = dict.fromkeys(_NAMES, dtype)
    if mask or lengths:
        types["attn_mask"] = mask
    if lengths:
        types |= {"past_key": "", "past_value": "", "nonpad_kv_seqlen": "int64"}
    attributes = dict(zip(("q_num_heads", "kv_num_heads"), heads, strict=False))
    return one_operator(
        "Attention",
        _OPSET,
        types,
        dtype,
        own=False,
        is_causal=int(causal),
        scale=scale,
        softcap=softcap,
        **attributes,
    )
