"""`attnlab.fastest`: the fastest right backend answers calls like the measured ones, PyTorch answers all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import synthetic
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_function

import attnlab
from attnlab.fastest import Choice, Fastest
from attnlab.runs.store import Run

BOTH = {"torch_eager": 10.0, "torch_sdpa": 20.0}


def raced(folder: Path, seconds: Mapping[str, float] = BOTH, **options: Any) -> Run:
    """A run on this machine in which a call of each contender takes `seconds[name]` microseconds."""
    costs = {name: (lambda workload, one=one: one * 1e-6) for name, one in seconds.items()}
    grid = {"lengths": (8, 16), "heads": (2,), "wander": 0.0, "noise": 0.001, **options}
    folder.mkdir(exist_ok=True)
    run = synthetic(folder, costs=costs, kernels={}, **grid)
    run.environment = {}
    return run


def tensors(
    queries: int = 16,
    keys: int | None = None,
    *,
    heads: int = 2,
    kv_heads: int | None = None,
    dim: int = 64,
    dtype: torch.dtype = torch.float32,
    grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, standard normal."""
    shapes = (heads, queries), *[(kv_heads or heads, keys or queries)] * 2
    made = (torch.randn(1, count, length, dim).to(dtype) for count, length in shapes)
    query, key, value = (one.requires_grad_(grad) for one in made)
    return query, key, value


def answered(found: Fastest, *arrays: Any, **asked: Any) -> Choice:
    """The choice. The answer must be close to PyTorch's, and bit-equal if PyTorch's function was chosen."""
    choice, answer, own = (one(*arrays, **asked) for one in (found.explain, found, own_function))
    close = {"rtol": 0.0, "atol": 0.0} if choice.backend == "torch_sdpa" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(answer, own, **close)
    assert answer.requires_grad == own.requires_grad
    return choice


@pytest.mark.parametrize("name", ["torch_eager", "torch_sdpa", "torch_sdpa_math", "torch_sdpa_flash"])
def test_the_fastest_answers(name: str, tmp_path: Path) -> None:
    every = ("torch_eager", "torch_sdpa", "torch_sdpa_math", "torch_sdpa_flash")
    run = raced(tmp_path, {one: 10.0 if one == name else 20.0 for one in every})
    found = answered(attnlab.fastest(run), *tensors())
    assert (found.backend, found.distance) == (name, 1.0)
    assert found.workload is not None and found.workload.label == "b1 h2 n16 d64 float32 cpu"
    if name != "torch_sdpa":
        assert found.verdict is not None and found.verdict.low < 0.5 < found.verdict.high


def test_each_workload_is_judged_alone(tmp_path: Path) -> None:
    """Of the workloads with the sizes of the call, the one with the same batch and heads decides."""
    costs = {"torch_eager": lambda one: 1e-5 if one.batch == 4 else 3e-5, "torch_sdpa": lambda one: 2e-5}
    variants = ({"heads": 4, "kv_heads": 4}, {"batch": 4})
    run = synthetic(
        tmp_path, costs=costs, kernels={}, lengths=(16,), heads=(1,), noise=0.001, variants=variants
    )
    run.environment = {}
    found, (query, key, value) = attnlab.fastest(run), tensors(heads=4)
    assert found.explain(query, key, value).backend == "torch_sdpa"
    batched = (one.transpose(0, 1).contiguous() for one in (query, key, value))
    assert found.explain(*batched).backend == "torch_eager"


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "causal": ({"causal": True}, {}, {"is_causal": True}),
    "grouped": ({"kv_heads": 1}, {"kv_heads": 1}, {"enable_gqa": True}),
    "decoding": ({"queries": 1}, {"queries": 1, "keys": 16}, {}),
    "training": ({"direction": "training"}, {"grad": True}, {"is_causal": False}),
    "scaled": ({}, {}, {"scale": 0.3}),
    "near": ({}, {"queries": 20, "keys": 9, "heads": 4}, {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_was_measured_is_answered_by_it(name: str, tmp_path: Path) -> None:
    measured, arrays, asked = CALLS[name]
    found = attnlab.fastest(raced(tmp_path, variants=(measured,)))
    assert answered(found, *tensors(**arrays), **asked).backend == "torch_eager"


OUTSIDE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dropout": ("dropout", {}, {"dropout_p": 1.0}),
    "dtype": ("float64", {"dtype": torch.float64}, {}),
    "grad": ("training", {"grad": True}, {}),
    "causal": ("causal", {}, {"is_causal": True}),
    "mask": ("attn_mask", {}, {"attn_mask": torch.ones(16, 16, dtype=torch.bool)}),
    "head_dim": (" d32 ", {"dim": 32}, {}),
    "groups": (" h2/1 ", {"kv_heads": 1}, {"enable_gqa": True}),
    "one query": (" n1x16 ", {"queries": 1, "keys": 16}, {}),
    "long": ("factor of up to 6.25", {"queries": 100}, {}),
    "negative": ("scale -0.5", {}, {"scale": -0.5}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_what_was_measured_pytorch_answers(name: str, tmp_path: Path) -> None:
    said, arrays, asked = OUTSIDE[name]
    found = answered(attnlab.fastest(raced(tmp_path)), *tensors(**arrays), **asked)
    assert found.backend == "torch_sdpa" and said in found.why


def test_the_state_of_the_process_is_looked_at_in_every_call(tmp_path: Path) -> None:
    run, arrays = raced(tmp_path), tensors()
    threads = torch.get_num_threads()
    run.environment = {
        "contenders": {"torch_sdpa": {"pools": [{"user_api": "openmp", "num_threads": threads}]}}
    }
    found = attnlab.fastest(run)

    def own() -> bool:
        return found.explain(*arrays).backend == "torch_sdpa"

    assert not own()
    with torch.autocast("cpu"):
        assert own()
    torch.use_deterministic_algorithms(True)
    assert own()
    torch.use_deterministic_algorithms(False)
    assert torch.func.vmap(lambda one: torch.full((), float(own())))(torch.ones(1)).item()
    torch.set_num_threads(threads + 1)
    try:
        assert own() and str(threads + 1) in found.explain(*arrays).why
    finally:
        torch.set_num_threads(threads)
    assert not own()


def test_a_contender_that_may_not_answer_is_left_out_with_the_reason(tmp_path: Path) -> None:
    names = {"numpy_blocked": 5.0, "torch_eager[threads=1]": 6.0, "torch_flex": 7.0, "torch_sdpa_math": 8.0}
    run = raced(tmp_path, names | {"torch_sdpa_flash": 9.0} | BOTH, wrong=("torch_sdpa_flash",))
    lower = {"torch_sdpa_math": {"computes_in": "bfloat16"}, "numpy_blocked": {"library": "numpy"}}
    run.results = [replace(one, **lower.get(one.contender, {})) for one in run.results]
    found = answered(attnlab.fastest(run), *tensors())
    assert found.backend == "torch_eager" and "torch_sdpa_flash" not in found.left_out
    assert "arrays of numpy" in found.left_out["numpy_blocked"]
    assert "leave out threads" in found.left_out["torch_eager[threads=1]"]
    assert "compiled=True" in found.left_out["torch_flex"]
    assert "bfloat16" in found.left_out["torch_sdpa_math"]
    run.environment = {"contenders": {"torch_eager": {"file": "of another text"}}}
    found = answered(attnlab.fastest(run), *tensors())
    assert found.backend == "torch_sdpa" and "has changed" in found.left_out["torch_eager"]


def test_scores_in_float16_never_answer(tmp_path: Path) -> None:
    """Such scores may be infinite where PyTorch's are not."""
    run = raced(tmp_path, dtypes=("float16",))
    right = [(one, one.accuracy) for one in run.results if one.accuracy is not None]
    run.results = [replace(one, accuracy=replace(found, kind="scores rounded")) for one, found in right]
    query, key, value = tensors(dtype=torch.float16)
    found = attnlab.fastest(run)
    assert "65504" in found.explain(query, key, value).left_out["torch_eager"]
    assert found(300 * query, 300 * key, value).isfinite().all()


@pytest.mark.parametrize(
    ("seconds", "rounds", "why"),
    [({"torch_eager": 10.0, "torch_sdpa_math": 20.0}, 15, "was not measured"), (BOTH, 2, "clearly")],
)
def test_a_run_that_does_not_decide_it_changes_nothing(seconds, rounds, why, tmp_path) -> None:
    run = raced(tmp_path, seconds, visits=min(rounds, 5) // 2, rounds=rounds)
    found = answered(attnlab.fastest(run), *tensors())
    assert found.backend == "torch_sdpa" and why in found.why


def test_a_run_that_cannot_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no measured speed"):
        attnlab.fastest(raced(tmp_path, wrong=tuple(BOTH)))
    with pytest.raises(ValueError, match="holds no run"):
        attnlab.fastest(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"factor must be 1 or more, got 0\.5"):
        attnlab.fastest(raced(tmp_path / "other"), factor=0.5)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"cpu": "Another CPU"}, r"another machine \(Another CPU; other cpu\)"),
        ({"contenders": {"torch_sdpa": {"versions": {"torch": "1.0"}}}}, r"with PyTorch 1\.0"),
    ],
)
def test_another_machine_is_told_once_and_nothing_is_sent(environment, said, tmp_path) -> None:
    run = raced(tmp_path)
    run.environment = environment
    with pytest.warns(UserWarning, match=said):
        found = attnlab.fastest(run)
    assert answered(found, *tensors()).backend == "torch_sdpa"
    assert answered(attnlab.fastest(run, elsewhere=True), *tensors()).backend == "torch_eager"
