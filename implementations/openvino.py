"""OpenVINO's scaled_dot_product_attention on the CPU, computed in float32 unless a setting says otherwise.

``openvino.opset13.scaled_dot_product_attention`` (operation ScaledDotProductAttention-13 of OpenVINO's
specification), compiled in the first call: for its shapes, or, if these are small, once for all
shapes. `INFERENCE_PRECISION_HINT` is always set: OpenVINO's own default is bfloat16 on a processor that has it,
whatever the inputs are. Here it is the precision of the inputs, or with ``openvino[precision=bf16]`` and
``[precision=f16]`` a lower one, if the processor has it. Its tensors use NumPy's memory; no array is copied. Arrays
in the layout of a projection's result are transposed by the model, with the operator Transpose.

`causal` is top-left. The output for a query that sees no key is NaN, which attnlab overwrites with zeros. A
scale of 0 or below is folded into the query.

Time: 4·b·h·n_q·n_k·d floating-point operations in the matrix products of OpenVINO's CPU plugin; causal saves
nothing. Memory: the output and rows of the score matrix for each thread; an added mask once more.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Recipe, positive_scale
from attnlab.libraries.numpy_and_runtimes_library import OpenVino, openvino_core, run_openvino

ov = OpenVino.opened()

LIBRARY = "openvino"
SETTINGS = {"precision": ("f32", "bf16", "f16")}

_NAMES = ("query", "key", "value", "scale", "attn_mask")
#: with at least this many scores per head a model is compiled for its shapes: 15 % faster at n = 2048, 0.05 s per model
_OWN_SHAPES = 2**16
#: OpenVINO's names of the precisions, and the number formats of those that are lower than the inputs'
_CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
_LOWER = {"bf16": "bfloat16", "f16": "float16"}
_HEADS_FIRST = np.array([0, 2, 1, 3])
_Shape = tuple[int, ...]
_precision = "f32"


def configure(*, precision: str) -> str | None:
    """Compute in `precision` from now on. Returns its number format if that is lower. Raises ValueError without it."""
    global _precision
    has = openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if _CAPABILITIES[precision] not in has:
        only = ", ".join(sorted(has))
        raise ValueError(f"OpenVINO's CPU plugin has no {precision} on this processor, only {only}")
    _precision = precision
    return _LOWER.get(precision)


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    causal: bool,
    scale: float,
    attn_mask: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """softmax(scale · Q Kᵀ + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    query, scale = positive_scale(query, scale)
    mask = "" if attn_mask is None else str(attn_mask.dtype)
    model, arrays, transposed = _asked(query, key, value, causal, mask)
    arrays.append(np.array(scale, dtype=query.dtype))
    if attn_mask is not None:
        arrays.append(np.ascontiguousarray(attn_mask))
    batch, heads, n_q, _ = query.shape
    shape = (batch, n_q, heads) if transposed else (batch, heads, n_q)
    output = np.empty((*shape, value.shape[3]), dtype=query.dtype)
    run_openvino(model, _precision, arrays, output)
    return output.swapaxes(1, 2) if transposed else output


def _asked(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], causal: bool, mask: str
) -> tuple[Recipe, list[NDArray[Any]], bool]:
    """The model, its first three arrays, and whether they are passed as (batch, length, heads, dim).

    An array is copied only if the three do not all have this layout, and do not all lie as (batch, heads, length, dim).
    """
    arrays = [query, key, value]
    transposed = not all(one.flags.c_contiguous for one in arrays) and all(
        one.swapaxes(1, 2).flags.c_contiguous for one in arrays
    )
    laid = [np.ascontiguousarray(one.swapaxes(1, 2) if transposed else one) for one in arrays]
    own = query.shape[2] * key.shape[2] >= _OWN_SHAPES
    shapes = tuple(one.shape if own else (-1,) * 4 for one in laid)
    return Recipe(_attention, (str(query.dtype), causal, mask, shapes, transposed)), laid, transposed


def _attention(dtype: str, causal: bool, mask: str, shapes: tuple[_Shape, ...], transposed: bool) -> Any:
    """A model of one scaled_dot_product_attention; `mask` is the dtype of the mask or "", -1 a size left open."""
    ops = ov.opset13
    types = {"float32": ov.Type.f32, "bool": ov.Type.boolean}
    asked = [*((shape, dtype) for shape in shapes), ((), dtype)]
    if mask:
        asked.append(((-1,) * 4, mask))
    inputs = [
        ops.parameter(ov.PartialShape(list(shape)), types[one], name=name)
        for name, (shape, one) in zip(_NAMES, asked, strict=False)
    ]
    arrays = [ops.transpose(one, _HEADS_FIRST) if transposed else one for one in inputs[:3]]
    # the scale is the argument after the mask: without a mask a 0 is added
    added = inputs[4] if mask else ops.constant(np.zeros((), dtype))
    output = ops.scaled_dot_product_attention(*arrays, added, inputs[3], causal=causal)
    if transposed:
        output = ops.transpose(output, _HEADS_FIRST)
    return ov.Model([output], inputs, "attention")
