"""The formula in the array API standard."""

import array_api_strict as xp

LIBRARY = "strict"


def attend(query, key, value, *, scale, mask=None):
    scores = xp.matmul(query, xp.matrix_transpose(key)) * scale
    if mask is not None:
        scores = xp.where(mask, scores, xp.asarray(-xp.inf, dtype=scores.dtype))
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return xp.matmul(weights / xp.sum(weights, axis=-1, keepdims=True), value)
