"""The multi-head block: every projection gives the same result, and one line refuses input that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnlab
from attnlab.backends.discovery import load
from attnlab.correctness.error_budget import error_budget
from attnlab.errors import Declined
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import PARAMETERS, PROJECTIONS, Inputs
from attnlab.workload.number_formats import FORMATS, round_to
from attnlab.workload.workload import Workload

SMALL = Workload(batch=2, heads=4, queries=5, keys=5, d_model=24, dtype="float64")
VARIANTS: dict[str, dict[str, Any]] = {
    "self-attention": {},
    "cross-attention": {"keys": 7},
    "grouped heads": {"kv_heads": 2},
    "heads that do not divide d_model": {"head_dim": 4, "value_dim": 4, "scale": None},
    "causal": {"causal": "top_left"},
    "decoding": {"queries": 1, "keys": 9},
}


def written_out(problem: Inputs) -> np.ndarray:
    """The block by its formula, in float64; the heads are split and concatenated explicitly."""
    block = problem.block
    assert block is not None
    projected = {}
    for name, (weight, bias) in block.projections.items():
        tokens = block.x if name == "query" else block.source
        heads = block.heads if name == "query" else block.kv_heads
        flat = np.einsum("bnm,om->bno", tokens, weight) + bias
        projected[name] = np.stack(np.split(flat, heads, axis=-1), axis=1)
    core = problem.with_(**projected, block=None)
    of_core = error_budget(core).output
    return (
        np.concatenate(list(of_core.swapaxes(0, 1)), axis=-1) @ block.parameters["out_proj.weight"].T
        + block.parameters["out_proj.bias"]
    )


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("name", ["numpy_vectorized", "torch_sdpa"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_projection_around_every_core_is_the_formula(variant, name, projection) -> None:
    """Checked in float64, up to rounding, in two array libraries."""
    workload = SMALL.with_(**variant)
    backend, problem = load(name), inputs_of(workload)
    refusal = backend.declines(workload, projection)
    if refusal:
        assert refusal == backend.declines(workload.core), "a block is declined for its core"
        pytest.skip(refusal.reason)
    found = backend.named(workload, backend.bind(workload, problem, projection)())["output"]
    assert found.shape == (2, workload.queries, 24)
    np.testing.assert_allclose(found, written_out(problem), rtol=0, atol=1e-12)


def test_a_state_dict_of_torch_is_taken_as_it_is() -> None:
    """The block then gives the result of PyTorch's module, up to rounding."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(24, 4, batch_first=True)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        torch.nn.init.normal_(bias)
    x, memory = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    with torch.no_grad():
        expected, _ = module(x, memory, memory, need_weights=False)
    state = {name: one.detach() for name, one in module.state_dict().items()}
    found = attnlab.block("torch_sdpa", x.numpy(), state, heads=4, memory=memory.numpy())
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


# -- what does not fit -------------------------------------------------------------------------------

X = np.zeros((1, 3, 8), np.float32)


def state(**changed: Any) -> dict[str, Any]:
    """A state dict that fits X and two heads, except for what is changed; None removes an entry."""
    shapes = dict(zip(PARAMETERS, ((24, 8), (24,), (8, 8), (8,)), strict=True))
    found = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | changed
    return {name: one for name, one in found.items() if one is not None}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"parameters": state(in_proj_weight=np.zeros((8, 24)))}, r"\(24, 8\), got \(8, 24\); transpose"),
        ({"parameters": state(in_proj_bias=None)}, "got no in_proj_bias; give zeros for a bias"),
        ({"parameters": state(in_proj_bias=np.full(24, np.nan))}, "in_proj_bias must be finite, got a NaN"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads must be a whole number from 1 to 16,777,216, got 0"),
        ({"heads": 3}, "d_model must be divisible by heads, got 8 and 3; take 2 heads, or give a head_dim"),
        ({"x": X[0]}, r"x must be a non-empty array of shape \(batch, queries, d_model\), got \(3, 8\)"),
        ({"memory": np.zeros((1, 5, 7), np.float32)}, r"memory must have shape \(1, keys, 8\) .* \(1, 5, 7\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line_with_the_mend(given_: dict[str, Any], message: str) -> None:
    """The message says what was expected and what was given."""
    arguments = {"x": X, "parameters": state(), "heads": 2, **given_}
    with pytest.raises(ValueError, match=message) as refusal:
        attnlab.block("numpy_vectorized", **arguments)
    assert "\n" not in str(refusal.value)


def test_bfloat16_is_computed_in_bfloat16() -> None:
    """Without a dtype argument the dtype of x decides, as in `attend`."""
    pytest.importorskip("torch")
    x = np.linspace(-1, 1, X.size).reshape(X.shape).astype(FORMATS["bfloat16"])
    found = attnlab.block("torch_sdpa", x, state(**{"out_proj.bias": np.full(8, 0.3)}), heads=2)
    assert np.array_equal(found, np.full(X.shape, round_to(np.array(0.3), "bfloat16")))


def test_a_callers_mask_with_an_empty_row_is_declined() -> None:
    """A workload does not hold the caller's mask, and PyTorch's module would return NaN."""
    pytest.importorskip("torch")
    mask = np.arange(3)[:, None] != np.full(3, 2)
    with pytest.raises(Declined, match="a query sees no key"):
        attnlab.block("torch_mha", X, state(), heads=2, mask=mask)
