"""Observables read from a backend's outputs agree with float64 sums over the score matrix, within its rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from every import every

from attnlab.errors import Declined, Unavailable
from attnlab.lab.observables import observe
from attnlab.workload.number_formats import round_to

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
LOGIT_SIZED = ("log_partition", "mean_energy", "entropy", "largest_logit")
WEIGHT_SIZED = ("participation", "jacobian_norm_squared", "largest_weight")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def direct(q: np.ndarray, k: np.ndarray, scale: float, causal: bool) -> dict[str, np.ndarray]:
    """The definitions, in float64 on the whole score matrix; the Jacobian norm element by element."""
    k = k.repeat(q.shape[1] // k.shape[1], axis=1)
    s = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
    seen = np.tri(*s.shape[2:], dtype=bool) if causal else np.ones(s.shape, bool)
    top = np.where(seen, s, -np.inf).max(axis=-1, keepdims=True)
    e = np.where(seen, np.exp(s - top), 0.0)
    p = e / e.sum(axis=-1, keepdims=True)
    log_z = (top + np.log(e.sum(axis=-1, keepdims=True)))[..., 0]
    jacobian = p[..., :, None] * (np.eye(p.shape[-1]) - p[..., None, :])
    return {
        "log_partition": log_z,
        "mean_energy": (p * s).sum(axis=-1),
        "entropy": -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1),
        "participation": (p**2).sum(axis=-1),
        "jacobian_norm_squared": (jacobian**2).sum(axis=(-1, -2)),
        "largest_logit": top[..., 0],
        "largest_weight": p.max(axis=-1),
    }


THREE = ("numpy_vectorized", "torch_eager", "torch_sdpa")


@pytest.mark.parametrize(
    ("name", "dtype", "scale", "causal"),
    [
        *((name, "float32", 0.125, True) for name in every()),
        *((name, dtype, 1.0, False) for name in THREE for dtype in UNIT_ROUNDOFF),
    ],
)
def test_backends_and_formats_agree_with_direct_sums(name, dtype, scale, causal) -> None:
    """The tolerance is the rounding of the largest possible logit."""
    q, k = round_to(normal(1, 2, 24, 64), dtype), round_to(normal(1, 2, 40, 64), dtype)
    try:
        seen = observe(name, q, k, scale=scale, dtype=dtype, causal=causal)
    except (Declined, Unavailable) as reason:
        pytest.skip(str(reason))
    true, lengths = direct(q, k, scale, causal), (np.linalg.norm(one, axis=-1).max() for one in (q, k))
    unit = UNIT_ROUNDOFF[dtype] * (1 + abs(scale) * math.prod(lengths))
    for field in LOGIT_SIZED:
        assert np.abs(getattr(seen, field) - true[field]).max() <= 16 * unit, field
    for field in WEIGHT_SIZED:
        assert np.abs(getattr(seen, field) - true[field]).max() <= 64 * unit, field
