"""Every distribution draws the logits that its name promises, in every number format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from attnlab.errors import FieldError
from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import DTYPES, round_to
from attnlab.workload.workload import Workload

WORKLOAD = Workload(heads=2, queries=128, keys=128, head_dim=64)


def logits(workload: Workload) -> NDArray[np.float64]:
    """scale · Q Kᵀ in float64, of the inputs as cast."""
    found = inputs_of(workload)
    q, k = found.query.astype(np.float64), found.key.astype(np.float64)
    return np.asarray((q @ k.swapaxes(-1, -2)) * workload.scale)


@pytest.mark.parametrize(
    ("distribution", "std"), [("normal", 1.0), ("logit_std_4", 4.0), ("logit_std_8", 8.0)]
)
@pytest.mark.parametrize("change", [{}, {"scale": -0.02}, {"head_dim": 8}])
def test_logits_have_the_promised_spread(distribution: str, std: float, change: dict[str, float]) -> None:
    """`normal` has a spread of 1 at the default scale; logit_std_* has its own spread at any scale."""
    if distribution == "normal" and "scale" in change:
        std *= abs(change["scale"]) * 8  # the default scale is 1/8
    workload = WORKLOAD.with_(distribution=distribution, **{"scale": None, **change})
    assert logits(workload).std() == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize(("distribution", "near"), [("above_1000", 1200.0), ("below_minus_50000", -52000.0)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, -0.2])
def test_every_logit_lies_near_the_offset(distribution, near, dtype, scale) -> None:
    """Within 2 % in every format, so that float16 holds the logits: its largest number is 65504."""
    found = logits(WORKLOAD.with_(distribution=distribution, dtype=dtype, scale=scale))
    assert np.abs(found / near - 1).max() < 0.02 and np.abs(found).max() < 65504


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, -0.2])
def test_all_weights_but_one_are_subnormal_in_float32(dtype: str, scale: float | None) -> None:
    """They lie above half of its smallest number and below its smallest normal number. Key 0 has the other weight."""
    found = logits(WORKLOAD.with_(distribution="subnormal", dtype=dtype, scale=scale))
    assert (found[..., 0] == 0).all()
    assert found[..., 1:].min() >= -103 and found[..., 1:].max() <= -90


def test_sinks_are_as_large_as_ln_z() -> None:
    """So a sink that is left out shows at any length, also with a window."""
    for asked, seen in (({}, 2**16), ({"mask": "window(127,0,bottom_right)"}, 128)):
        found = inputs_of(Workload(heads=100, queries=1, keys=2**16, head_dim=1, sinks=True, **asked)).sinks
        assert found is not None and abs(found.mean() - np.log(seen)) < 0.5


def test_a_row_finds_its_largest_logit_twice() -> None:
    """Bit for bit, also with an odd number of keys."""
    found = logits(WORKLOAD.with_(distribution="duplicated_maxima", keys=129))[..., :128]
    assert ((found == found.max(axis=-1, keepdims=True)).sum(axis=-1) >= 2).all()


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_finite_and_values_have_no_mean(distribution: str, dtype: str) -> None:
    """With a value mean of 1 a wrong scale would hardly show."""
    found = inputs_of(WORKLOAD.with_(distribution=distribution, dtype=dtype))
    assert all(np.isfinite(array).all() for array in (found.query, found.key, found.value))
    assert abs(found.value.astype(np.float64).mean()) < 0.05


@given(arrays.arrays(np.uint32, arrays.array_shapes(min_dims=0), elements=st.integers(0, 2**32 - 1)))
@example(np.array(0x7F800001, np.uint32))
def test_bfloat16_is_rounded_as_torch_rounds_it(bits: np.ndarray) -> None:
    """Every bit pattern of float32: subnormal, ties, overflow to infinity; NaN stays NaN."""
    values = bits.view(np.float32)
    ours = round_to(values, "bfloat16")
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    assert ours.shape == values.shape and ours.dtype == np.float32
    nan = np.isnan(values)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


def test_a_tensor_that_numpy_cannot_hold_is_refused_in_one_line() -> None:
    one = torch.ones(1, 1, 2, 8)
    for asked in ((one.to(torch.float8_e4m3fn),) * 3, (one, one, one, torch.ones(2, 2, device="meta") > 0)):
        with pytest.raises(FieldError, match="must be an array that NumPy can hold"):
            Inputs.of(*asked[:3], mask=asked[3] if len(asked) > 3 else None)


def test_tensors_of_bfloat16_that_require_gradients() -> None:
    half, bias = torch.ones(1, 1, 2, 8, requires_grad=True).bfloat16(), torch.zeros(2, 2, requires_grad=True)
    found = Inputs.of(half, half, half, bias=bias, sinks=[1.003])
    assert found.dtype == "bfloat16" and found.sinks == [1.0], "what a kernel is given is what is asked"
