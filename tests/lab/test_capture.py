"""What is captured is what the model computed: by transformers' interface, and by PyTorch's function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Plain, bert, needs_transformers
from torch import nn
from torch.nn import functional

from attnlab.backends.call import answer
from attnlab.lab.capture import captured, disagreement, problem_of_call
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Causal, Given, KeyLengths, Window
from attnlab.workload.masks import EVERYTHING, Mask


def _gives_again(model: nn.Module, inputs: Any) -> list[Inputs]:
    """The problems of a call, each of which a backend answers as the model did."""
    calls = captured(model, inputs)
    for call in calls:
        assert disagreement(call) is None
        found = answer("numpy_blocked", call.problem)["output"]
        assert np.allclose(found, call.answer, atol=1e-5)
    return [call.problem for call in calls]


def test_a_module_that_calls_sdpa() -> None:
    """Both layers, in order, with their paths; the model is afterwards as it was."""
    model, x = Plain(causal=True).train(), torch.randn(2, 5, 16)
    before = functional.scaled_dot_product_attention
    problems = _gives_again(model, (x,))
    assert [one.query.shape for one in problems] == [(2, 2, 5, 8)] * 2
    assert all(one.scale == 1 / math.sqrt(8) and one.mask == Mask((Causal(),)) for one in problems)
    assert functional.scaled_dot_product_attention is before
    assert model.training
    assert not model._forward_hooks


def test_the_encoder_of_pytorch_is_seen_without_its_fast_path() -> None:
    """`nn.TransformerEncoderLayer` calls the function through PyTorch's own code, which no mode sees."""
    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    calls = captured(stack, (torch.randn(2, 7, 16),))
    assert [call.problem.query.shape for call in calls] == [(2, 4, 7, 4)] * 2
    assert [call.module for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(disagreement(call) is None for call in calls)


@needs_transformers
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_model_of_transformers(implementation: str) -> None:
    """Two layers by their paths, padding as key lengths, and the configuration as it was."""
    model = bert(attn_implementation=implementation)
    ids = torch.randint(4, 20, (2, 9))
    padding = torch.ones_like(ids)
    padding[1, 6:] = 0
    with torch.no_grad():
        before = model.eval()(input_ids=ids, attention_mask=padding).last_hidden_state
    problems = _gives_again(model, {"input_ids": ids, "attention_mask": padding})
    assert [one.mask for one in problems] == [Mask((KeyLengths((9, 6)),))] * 2
    assert model.config._attn_implementation == implementation
    with torch.no_grad():
        after = model(input_ids=ids, attention_mask=padding).last_hidden_state
    assert torch.equal(before, after)
    calls = captured(model, {"input_ids": ids})
    assert [call.module for call in calls] == [f"encoder.layer.{n}.attention.self" for n in range(2)]


#: decoders of transformers: the configuration beside `SMALL`, and what the problem of its call holds
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 50, "head_dim": 8}
DECODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Mistral": ({"sliding_window": 3}, {"mask": Mask((Causal(), Window(2, 0)))}),
    "Gemma2": (
        {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 4, "layer_types": ["full_attention"]},
        {"softcap": 0.5, "scale": 0.5},
    ),
    "GptOss": (
        {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"]},
        {"mask": Mask((Causal(),))},
    ),
}


@needs_transformers
@pytest.mark.parametrize("name", DECODERS)
def test_grouped_heads_windows_caps_and_sinks_of_a_decoder(name: str) -> None:
    """4 heads on 2 key heads; of gpt-oss one more logit a head, which is learned."""
    import transformers

    torch.manual_seed(0)
    own, holds = DECODERS[name]
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "eager"}
    model = getattr(transformers, f"{name}Model")(
        getattr(transformers, f"{name}Config")(**SMALL, **heads, **own)
    )
    if name == "GptOss":
        with torch.no_grad():
            model.layers[0].self_attn.sinks.copy_(torch.tensor([1.0, -1.0, 2.0, 0.5]))
    (problem,) = _gives_again(model, {"input_ids": torch.randint(0, 50, (1, 8)), "use_cache": False})
    assert problem.kv_heads == 2
    assert {field: getattr(problem, field) for field in holds} == holds
    assert (problem.sinks is None) is (name != "GptOss")
    assert problem.sinks is None or problem.sinks.tolist() == [1.0, -1.0, 2.0, 0.5]


def test_masks_get_their_names() -> None:
    """Booleans and added numbers alike: causal either way, windows, lengths; others stay arrays."""
    q, k, v = (torch.ones(2, 2, n, 4) for n in (4, 6, 6))
    rows, columns = torch.arange(4)[:, None], torch.arange(6)
    least = torch.finfo(torch.float32).min
    lengths = (columns < torch.tensor([[6], [2]]))[:, None, None]
    for seen, mask in (
        (columns <= rows, Mask((Causal(),))),
        (columns <= rows + 2, Mask((Causal("bottom_right"),))),
        (
            (columns <= rows + 2) & (columns >= rows + 1),
            Mask((Causal("bottom_right"), Window(1, 0, "bottom_right"))),
        ),
        (lengths, Mask((KeyLengths((6, 2)),))),
        (torch.ones(4, 6, dtype=torch.bool), EVERYTHING),
    ):
        added = torch.zeros(seen.shape).masked_fill(~seen, least)
        for given in (seen, added, added.masked_fill(~seen, -torch.inf)):
            assert problem_of_call(q, k, v, mask=given).mask == mask
            assert problem_of_call(q, k, v, mask=given).bias is None
    odd = (rows + columns) % 3 != 0
    (part,) = problem_of_call(q, k, v, mask=odd).mask.parts
    assert isinstance(part, Given)
    assert np.array_equal(np.broadcast_to(part.array, (1, 1, 4, 6))[0, 0], odd.numpy())
