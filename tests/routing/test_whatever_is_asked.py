"""`attnlab.fastest` on calls drawn at random: the answer is PyTorch's, and the choice was measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from raced_runs import DIRECTIONS, TENSORS, raced, tensors
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_function

import attnlab
from attnlab.correctness.evidence import weigh
from attnlab.correctness.reference import refer
from attnlab.lab.capture import problem_of_call
from attnlab.routing.dispatch import Fastest
from attnlab.workload.vocabulary import DTYPES, GRADIENTS, OUTPUT

#: what is asked of each of these backends in the run of `everything`, beside no mask: causal, booleans, numbers
WINNERS = ("torch_eager", "torch_sdpa_math")
MASKS: tuple[dict[str, Any], ...] = ({}, {"causal": True}, {"mask": "random(0.5)"}, {"bias": "normal"})


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fastest]:
    """By winner, the function of a run of every mask, direction, dtype and grouping."""
    variants = tuple(
        {**mask, "direction": direction, "dtype": dtype, **({"kv_heads": 1} if grouped else {})}
        for mask, direction, dtype, grouped in itertools.product(MASKS, DIRECTIONS, DTYPES, (False, True))
    )
    made = {}
    for name in WINNERS:
        seconds = {one: 10.0 if one == name else 20.0 for one in TENSORS}
        folder = tmp_path_factory.mktemp(name)
        run = raced(folder, seconds, lengths=(8, 16), variants=variants, rounds=10, head_dim=16)
        made[name] = attnlab.fastest(run)
    return made


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """A call of any shape, mask, dtype, direction and layout, mostly within what was measured."""
    heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "batch": draw(st.integers(1, 2)),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([one for one in (1, 2, 4) if heads % one == 0])),
        "queries": draw(st.integers(1, 24)),
        "keys": draw(st.integers(1, 24)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "mask": draw(st.sampled_from(["", "causal", "booleans", "numbers", "holes"])),
        "axes": draw(st.integers(2, 4)),
        "grad": draw(st.booleans()),
        "scale": draw(st.none() | st.floats(0.01, 2.0)),
        "turned": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def asked(call: dict[str, Any]) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """The tensors and the further arguments of a drawn call."""
    names = ("queries", "keys", "batch", "heads", "kv_heads", "dtype", "seed")
    arrays = list(tensors(dim=16, **{name: call[name] for name in names}))
    if call["turned"]:
        arrays = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in arrays]
    query, key, value = (one.detach().requires_grad_(call["grad"]) for one in arrays)
    generator = torch.Generator().manual_seed(call["seed"] + 1)
    shape = (call["batch"], call["heads"], call["queries"], call["keys"])[-call["axes"] :]
    options: dict[str, Any] = {"scale": call["scale"], "enable_gqa": call["heads"] != call["kv_heads"]}
    if call["mask"] == "causal":
        options["is_causal"] = True
    elif call["mask"] == "booleans":  # some queries see no key
        options["attn_mask"] = torch.rand(shape, generator=generator) < 0.5
    elif call["mask"]:
        numbers = torch.randn(shape, generator=generator)
        if call["mask"] == "holes":
            numbers = numbers.masked_fill(torch.rand(shape, generator=generator) < 0.3, -torch.inf)
        options["attn_mask"] = numbers.to(query.dtype)
    return (query, key, value), options


@settings(max_examples=100)
@given(call=calls(), name=st.sampled_from(WINNERS))
def test_the_answer_is_right_whatever_is_asked(
    everything: dict[str, Fastest], call: dict[str, Any], name: str
) -> None:
    """Within the gate's budget, output and gradients, as PyTorch's own."""
    found = everything[name]
    arrays, options = asked(call)
    choice, answer = found.explain(*arrays, **options), found(*arrays, **options)
    own = own_function(*arrays, **options)
    assert (answer.shape, answer.dtype, answer.requires_grad) == (own.shape, own.dtype, call["grad"])
    assert not choice.fell_back or choice.backend == "torch_sdpa"
    upstream = torch.randn(own.shape, generator=torch.Generator().manual_seed(1)).to(own.dtype)
    results = {OUTPUT: answer}
    if call["grad"]:
        results |= dict(zip(GRADIENTS, torch.autograd.grad(answer, arrays, upstream), strict=True))
    names = {"is_causal": "causal", "attn_mask": "mask", "scale": "scale"}
    given_ = {names[name]: one for name, one in options.items() if name in names}
    problem = problem_of_call(*(one.detach() for one in arrays), **given_)
    if call["grad"]:
        problem = problem.with_(output_gradient=_numpy(upstream).astype(problem.query.dtype))
    references = refer(problem)
    for what, result in results.items():
        fault = weigh(references[what], _numpy(result), directions=None).reason
        assert fault is None, f"{what} of {choice}: {fault}"


def _numpy(array: Tensor) -> Any:
    return array.detach().double().numpy()
