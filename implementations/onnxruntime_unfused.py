"""MatMul, Softmax and MatMul in ONNX Runtime, on the CPU: the plain graph beside the fused operators.

The graph that an exporter writes if it fuses nothing: transposed keys, MatMul, the scale, an added mask or bias,
Softmax, MatMul, of opset 13. ONNX Runtime optimises it as it does by default. It fuses transpose and scale into the
first product (FusedMatMul), but makes no Attention of the graph, because its fusions need a projection around it; the
attested operators show this. A session is made in the first call, one for each scale and cap and with or without a
mask, and is bound to NumPy's memory.

A boolean mask is passed as numbers, 0 and -inf, which are made in the first call. Grouped heads are one more axis,
along which the keys are broadcast. Arrays that are not contiguous are copied in every call. It has no float16: the
scale would be rounded to float16, and on the CPU ONNX Runtime splits a Softmax in float16 into other operators.

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of MLAS, and passes over the scores between them;
hidden scores are computed too. Memory: the output and two arrays of the size of the score matrix, with a mask three,
O(n_q·n_k).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Made, Recipe, required
from attnlab.libraries.numpy_and_runtimes_library import Node, graph, run_onnx
from attnlab.workload.workload import Workload

required("onnx", "onnxruntime", extra="onnxruntime")

LIBRARY = "onnxruntime"
MEMORY = {"scores": 3.1, "outputs": 1.1}

_OPSET = 13


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    attn_mask: NDArray[Any] | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    shape, kv_heads = query.shape, key.shape[1]
    arrays = {"query": query, "key": key, "value": value}
    if enable_gqa:
        arrays = {"query": _grouped(query, kv_heads), "key": key[:, :, None], "value": value[:, :, None]}
    if attn_mask is not None:
        arrays["added"] = _ADDED(attn_mask, kv_heads if enable_gqa else None)
    inputs = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    output = np.empty((*inputs["query"].shape[:-1], value.shape[-1]), dtype=np.float32)
    run_onnx(Recipe(_plain, (tuple(inputs), scale, softcap, 5 if enable_gqa else 4)), inputs, output)
    return output.reshape(*shape[:3], value.shape[-1])


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why the plain graph cannot do it, or None."""
    if workload.dtype != "float32":
        return (
            "dtype",
            f"the plain graph is made in float32 only, not in {workload.dtype}: it rounds the scale",
        )
    return None


def _plain(names: tuple[str, ...], scale: float, softcap: float | None, axes: int) -> bytes:
    """The graph; `names` are those of its inputs, with "added" for a mask if there is one."""
    constants = {"scale": scale}
    order = [*range(axes - 2), axes - 1, axes - 2]
    nodes: list[Node] = [("Transpose", ["key"], {"perm": order}), ("MatMul", ["query", "after 1"], {})]

    def then(operator: str, *others: str, **attributes: Any) -> None:
        nodes.append((operator, [f"after {len(nodes)}", *others], attributes))

    then("Mul", "scale")
    if softcap is not None:
        constants["cap"] = softcap
        then("Div", "cap")
        then("Tanh")
        then("Mul", "cap")
    if "added" in names:
        then("Add", "added")
    then("Softmax", axis=-1)
    then("MatMul", "value")
    return graph(nodes, _OPSET, dict.fromkeys(names, "float32"), "float32", constants=constants)


def _grouped(array: NDArray[Any], kv_heads: int) -> NDArray[Any]:
    """(batch, heads, …) as (batch, kv_heads, heads per group, …); an axis of one head for all becomes (1, 1)."""
    batch, heads, *rest = array.shape
    return array.reshape(batch, *((1, 1) if heads == 1 else (kv_heads, heads // kv_heads)), *rest)


def _added(attn_mask: NDArray[Any], kv_heads: int | None) -> NDArray[Any]:
    """What is added to the scores."""
    if attn_mask.dtype == np.bool_:
        attn_mask = np.where(attn_mask, 0.0, -math.inf)
    added = np.ascontiguousarray(attn_mask, dtype=np.float32)
    return added if kv_heads is None else _grouped(added, kv_heads)


_ADDED = Made(_added)
