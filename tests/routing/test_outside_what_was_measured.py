"""`attnlab.fastest` outside what was measured: PyTorch answers, and the reason is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from raced_runs import DIRECTIONS, raced, sent, tensors
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_function

import attnlab

#: a backend that cannot be differentiated, and one that answers wrongly
CUT_OFF = """
LIBRARY = "torch"
def attend(query, key, value, *, causal, scale, attn_mask=None, enable_gqa=False):
    from torch.nn.functional import scaled_dot_product_attention as own
    options = dict(attn_mask=attn_mask, is_causal=causal, scale=scale, enable_gqa=enable_gqa)
    return own(query, key, value, **options).detach()
"""


OUTSIDE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dropout": ("dropout was not measured", {}, {"dropout_p": 0.1}),
    "dtype": ("float64 was not measured, but float32", {"dtype": "float64"}, {}),
    "grad": ("training (with gradients) was not measured, but forward", {"grad": True}, {}),
    "causal": ("a causal mask was not measured, but no mask", {}, {"is_causal": True}),
    "numbers": ("a mask of numbers was", {}, {"attn_mask": torch.zeros(16, 16)}),
    "both": ("beside is_causal", {}, {"is_causal": True, "attn_mask": torch.zeros(16, 16)}),
    "head_dim": ("head_dim 32 was not measured, but head_dim 64", {"dim": 32}, {}),
    "groups": (
        "2 heads a key head was not measured, but 1 head a key head",
        {"kv_heads": 1},
        {"enable_gqa": True},
    ),
    "one query": ("one query was not measured, but several", {"queries": 1, "keys": 16}, {}),
    "long": ("factor of up to 3.12 from those of the nearest measured workload", {"queries": 100}, {}),
    "negative": ("only a scale above 0", {}, {"scale": -0.5}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_what_was_measured_pytorch_answers(name: str, tmp_path: Path) -> None:
    """With the reason; and to the bit what it answers itself."""
    said, arrays, asked = OUTSIDE[name]
    found = attnlab.fastest(raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}))
    given = tensors(**arrays)
    choice = found.explain(*given, **asked)
    assert (choice.backend, choice.fell_back) == ("torch_sdpa", True) and said in choice.why
    torch.manual_seed(0)
    answer = found(*given, **asked)
    torch.manual_seed(0)
    assert torch.equal(answer.nan_to_num(), own_function(*given, **asked).nan_to_num())


def test_within_what_changes_operations_pytorch_answers(tmp_path: Path) -> None:
    """Autocast, torch.func, forward-mode differentiation, traces, subclasses, other modes of the whole process."""
    found = attnlab.fastest(raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}))
    query, key, value = tensors()
    assert sent(found, query, key, value) == "torch_eager"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in found.explain(query, key, value).why
        assert found(query, key, value).dtype == own_function(query, key, value).dtype
    told: list[str] = []

    def through(one: Tensor) -> Tensor:
        told.append(found.explain(one, key, value).why)
        return found(one, key, value).sum()

    torch.func.grad(through)(query)
    with pytest.warns(UserWarning, match="batching rule"):  # PyTorch's, of its own function
        torch.vmap(through)(query[None])
    with torch.autograd.forward_ad.dual_level():
        through(query)
    assert len(told) == 3 and all("torch.func and forward-mode" in one for one in told)

    try:
        torch.use_deterministic_algorithms(True)
        assert "deterministic" in found.explain(query, key, value).why
    finally:
        torch.use_deterministic_algorithms(False)


def test_torch_compile_sees_pytorchs_own(tmp_path: Path) -> None:
    """Whole, and nothing of the choice is traced."""
    found = attnlab.fastest(raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}))
    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    compiled = torch.compile(lambda *arrays: found(*arrays), backend=keep, fullgraph=True)
    assert torch.equal(compiled(*tensors()), own_function(*tensors()))
    assert len(graphs) == 1 and "scaled_dot_product_attention" in graphs[0]


def test_what_cannot_be_differentiated_answers_no_training(tmp_path: Path) -> None:
    """It is the fastest forward; where gradients may be asked for it is never called, even if it was measured there."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cut_off.py").write_text(CUT_OFF, encoding="utf-8")
    directions = tuple({"direction": one} for one in DIRECTIONS)
    run = raced(
        tmp_path / "run",
        {"cut_off": 5.0, "torch_eager": 10.0, "torch_sdpa": 20.0},
        variants=directions,
        folders=(str(tmp_path / "mine"),),
    )
    # as a file says it that declines nothing: no library tells without trying
    run.results = [
        replace(one, library="torch")
        for one in run.results
        if (one.contender, one.workload.direction) != ("cut_off", "training")
    ]
    found = attnlab.fastest(run)
    assert sent(found, *tensors()) == "cut_off"
    arrays = tensors(grad=True)
    assert sent(found, *arrays) == "torch_eager"
    assert found(*arrays).requires_grad
    with torch.no_grad():
        assert sent(found, *arrays) == "cut_off"
    assert sent(found, *(one.detach() for one in arrays)) == "cut_off"
