"""The formula once, in the array API standard: on NumPy, PyTorch and JAX arrays alike.

``array_namespace`` of array-api-compat finds the library of the arrays, and only functions of the standard are called
(https://data-apis.org/array-api/2024.12). ``array_api`` computes on NumPy's arrays, ``array_api[arrays=torch]`` and
``[arrays=jax]`` on those of another library. Each operation runs separately.

Formats of 16 bits are computed in float32 and rounded at the end.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and about eight passes over the scores
between them. Memory: three arrays of the size of the score matrix at the peak, O(n_q·n_k).
"""

from typing import Any

from attnlab.libraries.library import required

array_api_compat = required("array_api_compat", extra="array-api")

LIBRARY = "numpy"
EMPTY_ROWS = "zeros"
SETTINGS = {"arrays": ("numpy", "torch", "jax")}

_HALF = ("float16", "bfloat16")


def configure(*, arrays: str) -> None:
    """Compute on the arrays of this library from now on."""
    global LIBRARY
    LIBRARY = arrays


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: bool,
    scale: float,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,); all are arrays of one library.
    """
    xp = array_api_compat.array_namespace(query, key, value)
    dtype = query.dtype
    if any(str(dtype).endswith(name) for name in _HALF):
        query, key, value = (xp.astype(array, xp.float32) for array in (query, key, value))
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key, value = xp.repeat(key, group, axis=1), xp.repeat(value, group, axis=1)
    scores = xp.matmul(query, xp.matrix_transpose(key)) * scale
    if softcap is not None:
        scores = softcap * xp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + xp.astype(bias, scores.dtype)
    seen = _seen(xp, scores, causal, mask)
    if seen is not None:
        scores = xp.where(seen, scores, _number(xp, scores, -float("inf")))
    # the shift changes nothing in exact arithmetic and keeps exp from overflowing
    highest = xp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        sinks = xp.astype(sinks, scores.dtype)[:, None, None]
        highest = xp.maximum(highest, sinks)
    if mask is not None:  # -inf in a row that sees no key
        highest = xp.maximum(highest, _number(xp, scores, xp.finfo(scores.dtype).min))
    weights = xp.exp(scores - highest)
    total = xp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + xp.exp(sinks - highest)
    if mask is not None:
        total = xp.where(total > 0, total, _number(xp, scores, 1.0))
    return xp.astype(xp.matmul(weights / total, value), dtype)


def _seen(xp: Any, scores: Any, causal: bool, mask: Any) -> Any:
    """Which keys a query sees, as a boolean array, or None for all."""
    if not causal:
        return mask
    ones = xp.ones(scores.shape[-2:], dtype=xp.bool, device=array_api_compat.device(scores))
    triangle = xp.tril(ones)
    return triangle if mask is None else xp.logical_and(triangle, mask)


def _number(xp: Any, like: Any, number: float) -> Any:
    """An array without axes, of the dtype and on the device of `like`."""
    return xp.asarray(float(number), dtype=like.dtype, device=array_api_compat.device(like))
