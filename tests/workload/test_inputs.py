"""Every distribution draws the logits that its name promises, in every number format that can hold them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.drawing import inputs
from attnlab.workload.vocabulary import DTYPES
from attnlab.workload.workload import Workload

WORKLOAD = Workload(heads=4, queries=128, keys=128, head_dim=64)


def logits(workload: Workload) -> NDArray[np.float64]:
    """scale · Q Kᵀ in float64, of the inputs as cast."""
    q, k, _ = (array.astype(np.float64) for array in inputs(workload))
    scaled: NDArray[np.float64] = (q @ k.swapaxes(-1, -2)) * workload.scale
    return scaled


@pytest.mark.parametrize(
    ("distribution", "std"), [("normal", 1.0), ("logit_std_4", 4.0), ("logit_std_8", 8.0)]
)
@pytest.mark.parametrize("change", [{}, {"scale": -0.02}, {"head_dim": 8}])
def test_logits_have_the_promised_spread(distribution: str, std: float, change: dict[str, float]) -> None:
    """`normal` by the d_k law at the default scale; logit_std_* at any scale."""
    if distribution == "normal" and "scale" in change:
        std *= abs(change["scale"]) * 8  # the default scale is 1/8
    workload = WORKLOAD.with_(distribution=distribution, **{"scale": None, **change})
    assert logits(workload).std() == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize(("distribution", "near"), [("above_1000", 1200.0), ("below_minus_50000", -52000.0)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, -0.2])
def test_every_logit_lies_near_the_offset(
    distribution: str, near: float, dtype: str, scale: float | None
) -> None:
    """Within 2 % in every format, so that float16 holds the logits: its largest number is 65504."""
    found = logits(WORKLOAD.with_(distribution=distribution, dtype=dtype, scale=scale))
    assert np.abs(found / near - 1).max() < 0.02
    assert np.abs(found).max() < 65504


def test_a_row_finds_its_largest_logit_twice() -> None:
    """Bit for bit, also with an odd number of keys."""
    found = logits(WORKLOAD.with_(distribution="duplicated_maxima", keys=129))[..., :128]
    assert ((found == found.max(axis=-1, keepdims=True)).sum(axis=-1) >= 2).all()


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_finite_and_values_have_no_mean(distribution: str, dtype: str) -> None:
    """With a value mean of 1 a wrong scale would hardly show."""
    arrays = inputs(WORKLOAD.with_(distribution=distribution, dtype=dtype))
    assert all(np.isfinite(array).all() for array in arrays)
    assert abs(arrays[2].astype(np.float64).mean()) < 0.05
