"""The multi-head block: one meaning however x is projected, one line for what does not fit, sizes that add up."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, settings

import attnlab
from attnlab.backends.discovery import load
from attnlab.errors import Declined
from attnlab.problem.block import PARAMETERS, PROJECTIONS, angles
from attnlab.problem.dtypes import ITEM_BYTES
from attnlab.problem.inputs import block_of, problem_of
from attnlab.problem.problem import Problem, pack, unpack
from attnlab.problem.workload import Workload

SMALL = Workload(batch=2, heads=4, queries=5, keys=5, d_model=24, dtype="float64")
VARIANTS: dict[str, dict[str, Any]] = {
    "self-attention": {},
    "cross-attention": {"keys": 7},
    "grouped heads": {"kv_heads": 2},
    "narrow values": {"value_dim": 3, "scale": None},
    "heads that do not divide d_model": {"head_dim": 4, "value_dim": 4, "scale": None},
    "rotary, causal": {"rotary": True, "causal": "top_left"},
    "rotary, decoding": {"rotary": True, "queries": 1, "keys": 9},
    "window, bias, cap": {"window": (2, 0), "bias": "normal", "softcap": 5.0},
    "a query that sees no key": {"mask": "random(0.1)"},
}


def written_out(problem: Problem) -> np.ndarray:
    """The block by the formula, a head, a query and a pair of components at a time, in float64."""
    block = problem.block
    assert block is not None
    projected = {}
    for name, (weight, bias) in block.projections.items():
        tokens = block.x if name == "query" else block.source
        heads = block.heads if name == "query" else block.kv_heads
        flat = np.einsum("bnm,om->bno", tokens, weight) + bias
        projected[name] = np.stack(np.split(flat, heads, axis=-1), axis=1)
    if block.rotary:
        half = block.head_dim // 2
        for name, positions in zip(("query", "key"), block.positions, strict=True):
            pairs = projected[name][..., :half] + 1j * projected[name][..., half:]
            frequencies = [10000.0 ** (-c / half) for c in range(half)]
            pairs = pairs * np.exp(1j * np.outer(positions, frequencies))
            projected[name] = np.concatenate([pairs.real, pairs.imag], axis=-1)
    core = problem.with_(**projected, block=None)
    of_core = attnlab.theory.error_budget(core).output
    return (
        np.concatenate(list(of_core.swapaxes(0, 1)), axis=-1) @ block.parameters["out_proj.weight"].T
        + block.parameters["out_proj.bias"]
    )


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("name", ["naive_loop", "numpy_vectorized", "torch_eager", "torch_sdpa"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_projection_around_every_core_is_the_formula(
    variant: dict[str, Any], name: str, projection: str
) -> None:
    """In float64, to rounding; in two array libraries."""
    workload = SMALL.with_(**variant)
    backend, problem = load(name), problem_of(workload)
    reason = backend.declines(workload, projection)
    if reason:
        assert reason == backend.declines(workload.core), "a block is declined for its core"
        pytest.skip(reason)
    found = backend.named(workload, backend.bind(workload, problem, projection)())["output"]
    assert found.shape == (2, workload.queries, 24)
    np.testing.assert_allclose(found, written_out(problem), rtol=0, atol=1e-12)


def test_scores_of_rotary_positions_depend_on_distances_alone() -> None:
    """q at t and k at s give what q at t + 5 and k at s + 5 give (Su et al. 2021, equation 16)."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 8))

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        by = np.exp(1j * angles(np.array([position]), 8)[0])
        return (x[:4] + 1j * x[4:]) * by

    def score(t: int, s: int) -> float:
        return float((turned(q, t) * turned(k, s).conj()).real.sum())

    assert score(7, 3) == pytest.approx(score(12, 8), abs=1e-12)
    assert abs(score(7, 3) - score(7, 4)) > 0.01


def test_the_last_query_stands_where_the_last_key_does() -> None:
    """So that decoding goes on where prefill ended."""
    queries, keys = block_of(SMALL.with_(rotary=True, queries=2, keys=9)).positions
    assert list(queries) == [7, 8] and list(keys) == list(range(9))


@pytest.mark.parametrize("projection", [None, *PROJECTIONS])
def test_a_state_dict_of_torch_is_taken_as_it_is(projection: str | None) -> None:
    """And the block is PyTorch's module, in its own arithmetic."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(24, 4, batch_first=True)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        torch.nn.init.normal_(bias)
    x, memory = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    with torch.no_grad():
        expected, _ = module(x, memory, memory, need_weights=False)
    state = {name: one.detach() for name, one in module.state_dict().items()}
    found = attnlab.block(
        "torch_sdpa", x.numpy(), state, heads=4, memory=memory.numpy(), projection=projection
    )
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)


def test_parameters_of_a_module_in_training_and_bfloat16_are_taken() -> None:
    """As a model holds them: with their way back, and in a number format that NumPy has not."""
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(24, 4).to(torch.bfloat16)
    x = np.ones((1, 3, 24), np.float32)
    trained = dict(module.named_parameters())
    widened = {name: one.detach().float().numpy() for name, one in trained.items()}
    np.testing.assert_array_equal(
        attnlab.block("torch_eager", x, trained, heads=4), attnlab.block("torch_eager", x, widened, heads=4)
    )


# -- what does not fit -------------------------------------------------------------------------------

X = np.zeros((1, 3, 8), np.float32)


def state(**changed: Any) -> dict[str, Any]:
    """A state dict that fits X and two heads, but for what is changed."""
    shapes = {
        "in_proj_weight": (24, 8),
        "in_proj_bias": (24,),
        "out_proj.weight": (8, 8),
        "out_proj.bias": (8,),
    }
    found = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | changed
    return {name: one for name, one in found.items() if one is not None}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"parameters": state(in_proj_weight=np.zeros((8, 24)))}, r"\(24, 8\) .* got \(8, 24\); transpose"),
        ({"parameters": state(in_proj_bias=None)}, "got no in_proj_bias; give zeros for a bias"),
        ({"parameters": state(bias_k=np.zeros((1, 1, 8)))}, r"holds in_proj_weight, .*, got bias_k"),
        ({"parameters": state(**{"out_proj.bias": np.zeros(9)})}, r"out_proj.bias must have shape \(8,\)"),
        ({"parameters": state(in_proj_bias=np.zeros(24, int))}, "in_proj_bias must hold floating-point .* got int64"),
        ({"parameters": state(in_proj_bias=np.full(24, np.nan))}, "in_proj_bias must be finite, got a NaN"),
        ({"parameters": 5}, r"parameters must be a state dict, arrays by their names, got int; .* state_dict\(\)"),
        ({"heads": 0}, "heads must be a whole number of at least 1, got 0"),
        ({"heads": "4"}, "heads must be a whole number of at least 1, got '4'"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads must be a whole number of at least 1, got 0"),
        ({"heads": 3}, "d_model must be divisible by heads, got 8 and 3; take 2 heads, or give a head_dim"),
        ({"x": X[0]}, r"x must be a non-empty array of shape \(batch, queries, d_model\), got \(3, 8\)"),
        ({"memory": np.zeros((1, 5, 7), np.float32)}, r"memory must have shape \(1, keys, 8\) .* \(1, 5, 7\)"),
        ({"kv_heads": 3, "heads": 4, "head_dim": 2}, "kv_heads must divide the 4 heads, got 3"),
        ({"rotary": True, "heads": 8}, "head_dim must be even for rotary positions, got 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line_with_the_mend(given_: dict[str, Any], message: str) -> None:
    """What was expected, and what came."""
    arguments = {"x": X, "parameters": state(), "heads": 2, **given_}
    with pytest.raises(ValueError, match=message) as refusal:
        attnlab.block("numpy_vectorized", **arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"d_model": 770, "heads": 12}, "d_model must be divisible by heads, got 770 and 12; take 11 heads"),
        ({"d_model": 0}, "d_model must be a whole number of at least 1, got 0"),
        ({"d_model": True}, "d_model must be a whole number"),
        ({"rotary": True}, "rotary positions belong to a multi-head block, got no d_model"),
        ({"rotary": 1, "d_model": 64}, "rotary must be true or false, got 1"),
        ({"rotary": True, "d_model": 24}, "head_dim must be even for rotary positions, got 3"),
        ({"d_model": 64, "layout": "bshd"}, "layout of a multi-head block .* got 'bshd': its projections"),
        ({"d_model": 64, "direction": "training"}, "direction of a multi-head block .* no error budget"),
        ({"d_model": 64, "distribution": "logit_std_4"}, "distribution of a multi-head block .* standard normal"),
    ],
)  # fmt: skip
def test_a_block_that_can_not_be_is_refused_in_one_line(given_: dict[str, Any], message: str) -> None:
    """As a workload, before anything is drawn."""
    with pytest.raises(ValueError, match=message) as refusal:
        Workload(**given_)
    assert "\n" not in str(refusal.value)


def test_what_a_backend_can_not_do_of_a_block_is_declined() -> None:
    """A core does not project, and a module does not project otherwise than it does."""
    core, whole = load("torch_sdpa"), load("torch_mha")
    assert core.declines(SMALL.core, "loop") == "projection belongs to a multi-head block; give --d-model"
    assert whole.declines(SMALL.core) == "it computes whole multi-head blocks; give --d-model"
    assert "one piece" in (whole.declines(SMALL, "loop") or "")
    assert "rotary" in (whole.declines(SMALL.with_(rotary=True)) or "")
    with pytest.raises(Declined, match="whole multi-head blocks"):
        whole.attend(X, X, X)


# -- as data -----------------------------------------------------------------------------------------


@given(strategies.blocks())
def test_a_block_survives_a_trip_through_json(workload: Workload) -> None:
    """And poses the workload that it was drawn for, but for bias and seed."""
    assert Workload.from_dict(json.loads(json.dumps(workload.to_dict()))) == workload
    problem = problem_of(workload)
    posed = Workload.of_problem(problem, device=workload.device)
    assert posed.with_(bias=workload.bias, seed=workload.seed) == workload
    back = unpack(*pack(problem))
    assert back.block is not None and problem.block is not None
    assert Workload.of_problem(back).core == Workload.of_problem(problem).core
    for name, array in problem.block.arrays().items():
        assert np.array_equal(back.block.arrays()[name], array)


def test_nobody_takes_a_block_for_a_core_by_mistake() -> None:
    """What its projections have yet to make is NaN, without memory of its own; theory refuses it."""
    problem = problem_of(SMALL)
    assert np.isnan(problem.query).all() and problem.query.strides == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="query must be finite"):
        attnlab.theory.error_budget(problem)


@given(strategies.blocks())
@settings(max_examples=50)
def test_flops_and_bytes_are_those_of_the_matrices(workload: Workload) -> None:
    """Two operations a weight and token, four projections; every parameter, x and memory once."""
    w, problem = workload, problem_of(workload)
    block = problem.block
    assert block is not None and w.d_model is not None
    q, k, v = (weight for weight, _ in block.projections.values())
    out = block.parameters["out_proj.weight"]
    per_query, per_key = q.size + out.size, k.size + v.size
    assert w.flops == w.core.flops + 2 * w.batch * (w.queries * per_query + w.keys * per_key)
    assert w.d_model == block.d_model == out.shape[0]
    bias = problem.bias.size if isinstance(problem.bias, np.ndarray) else 0
    numbers = sum(one.size for one in block.arrays().values()) + bias
    assert w.input_bytes == numbers * ITEM_BYTES[w.dtype]
    assert w.output_bytes == w.batch * w.queries * w.d_model * ITEM_BYTES[w.dtype]
    assert w.attends_to_itself == (block.memory is None)


def test_equal_workloads_give_bit_equal_blocks_and_no_bias_is_0() -> None:
    """A bias of 0 could be left out unseen."""
    one, other = block_of(SMALL), block_of(SMALL)
    assert all(np.array_equal(array, other.arrays()[name]) for name, array in one.arrays().items())
    assert all(np.abs(one.parameters[name]).min() > 0 for name in PARAMETERS)
    changed = block_of(SMALL.with_(seed=1)).arrays()
    assert not any(np.array_equal(array, changed[name]) for name, array in one.arrays().items())


def test_a_label_and_the_command_say_the_block() -> None:
    """head_dim is not said where it follows from d_model."""
    bert = Workload(heads=12, queries=128, keys=128, d_model=768, rotary=True)
    assert bert.label == "b1 h12 n128 d64 d_model=768 rotary float32 cpu"
    assert bert.command("torch_sdpa", "torch_mha") == (
        "attnlab compare torch_sdpa torch_mha --length 128 --heads 12 --d-model 768 --rotary true"
    )
    assert Workload(heads=16, d_model=768).head_dim == 48
