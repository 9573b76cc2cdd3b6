"""The standard ONNX operator Attention in ONNX Runtime, on the CPU.

https://onnx.ai/onnx/operators/onnx__Attention.html, opset 23. The model is that one operator; its session is
made when a workload is prepared, one for each scale, cap and kind of mask, and is bound to NumPy's memory
(IO binding), so that no array is copied. Arrays that lie as a projection leaves them go in with three axes, as the
operator has it.

`is_causal` is top-left. The kernel wants the last two axes of a mask in full; it refuses a scale of 0 or
below, which is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of MLAS; causal hides scores and saves
nothing. Memory: the output and one array of the size of the score matrix, for a mask up to one more,
O(n_q·n_k).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.keywords import flag_and_array
from attnlab.libraries.host import Recipe, required
from attnlab.libraries.onnxruntime_library import SESSIONS
from attnlab.libraries.torch_sdpa import LEAST_SCALE, positive_scale

onnx = required("onnx", "onnxruntime", extra="onnxruntime")
helper, TensorProto = onnx.helper, onnx.TensorProto

LIBRARY = "onnxruntime"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 2.1, "outputs": 1.1}

_NAMES = ("query", "key", "value")
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bool": TensorProto.BOOL}
#: its opset and the version of the format that came with it
_OPSET, _FORMAT = 23, 11


def prepare(
    workload: Any, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The arrays as they are, and the session that computes them."""
    causal, kind = flag_and_array(workload)
    mask = {"": "", "booleans": "bool", "numbers": str(query.dtype)}[kind]
    scale = 1.0 if abs(workload.scale) < LEAST_SCALE else abs(workload.scale)
    heads = _packed_heads(query, key, value)
    SESSIONS.session(
        Recipe(_attention, str(query.dtype), causal, scale, workload.softcap or 0.0, mask, heads)
    )
    return query, key, value


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    causal: bool,
    scale: float,
    attn_mask: NDArray[Any] | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    if scale < LEAST_SCALE:
        query, scale = positive_scale(query, scale)
    heads = _packed_heads(query, key, value)
    mask = "" if attn_mask is None else str(attn_mask.dtype)
    model = Recipe(_attention, str(query.dtype), causal, scale, softcap or 0.0, mask, heads)
    batch, of_query, n_q, _ = query.shape
    n_k, value_dim = value.shape[2:]
    inputs = dict(zip(_NAMES, (_packed(array, heads) for array in (query, key, value)), strict=True))
    if attn_mask is not None:
        full = np.broadcast_to(attn_mask, (*attn_mask.shape[:2], n_q, n_k))
        inputs["attn_mask"] = np.ascontiguousarray(full)
    if not heads:
        output = np.empty((batch, of_query, n_q, value_dim), dtype=query.dtype)
        SESSIONS.run(model, inputs, output)
        return output
    packed = np.empty((batch, n_q, of_query * value_dim), dtype=query.dtype)
    SESSIONS.run(model, inputs, packed)
    return packed.reshape(batch, n_q, of_query, value_dim).swapaxes(1, 2)


def _packed_heads(*arrays: NDArray[Any]) -> tuple[int, ...]:
    """The heads of query and key where the arrays lie as (batch, length, heads, dim), else ()."""
    if all(array.flags.c_contiguous for array in arrays):
        return ()
    if all(array.swapaxes(1, 2).flags.c_contiguous for array in arrays):
        return arrays[0].shape[1], arrays[1].shape[1]
    return ()


def _packed(array: NDArray[Any], heads: tuple[int, ...]) -> NDArray[Any]:
    """The array as the operator takes it; a copy only where it lies in neither way."""
    if not heads:
        return np.ascontiguousarray(array)
    batch, _, length, _ = array.shape
    return array.swapaxes(1, 2).reshape(batch, length, -1)


def _attention(
    dtype: str, causal: bool, scale: float, softcap: float, mask: str, heads: tuple[int, ...]
) -> bytes:
    """A model of one Attention, serialised; `mask` is the dtype of the mask or "", `heads` are of packed arrays."""
    inputs = [helper.make_tensor_value_info(name, _TYPES[dtype], None) for name in _NAMES]
    if mask:
        inputs.append(helper.make_tensor_value_info("attn_mask", _TYPES[mask], None))
    attributes = dict(zip(("q_num_heads", "kv_num_heads"), heads, strict=False))
    node = helper.make_node(
        "Attention",
        [one.name for one in inputs],
        ["output"],
        is_causal=int(causal),
        scale=scale,
        softcap=softcap,
        **attributes,
    )
    output = helper.make_tensor_value_info("output", _TYPES[dtype], None)
    model = helper.make_model(
        helper.make_graph([node], "attention", inputs, [output]),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_FORMAT,
    )
    found: bytes = model.SerializeToString()
    return found
