"""What is captured is what the model computed: by transformers' interface, and by PyTorch's function."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Plain, bert
from torch import Tensor, nn
from torch.nn import functional

from attnlab.backend.call import answer
from attnlab.experiments.capture import captured, disagreement, problem_of_call
from attnlab.problem.mask_parts import Causal, Given, KeyLengths, Window
from attnlab.problem.masks import EVERYTHING, Mask
from attnlab.problem.problem import Problem

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def _qkv(queries: int = 6, keys: int = 6, heads: int = 2, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.randn(2, heads, queries, 4),
        torch.randn(2, kv_heads, keys, 4),
        torch.randn(2, kv_heads, keys, 4),
    )


def _gives_again(model: nn.Module, inputs: Any) -> list[Problem]:
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


@needs_transformers
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_grouped_heads_and_windows_of_a_decoder(implementation: str) -> None:
    """Mistral: 4 heads on 2 key heads, causal, with a sliding window."""
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, intermediate_size=32,
        vocab_size=50, sliding_window=3, max_position_embeddings=64, attn_implementation=implementation,
    )  # fmt: skip
    (problem,) = _gives_again(
        MistralModel(config), {"input_ids": torch.randint(0, 50, (1, 8)), "use_cache": False}
    )
    assert problem.kv_heads == 2
    assert problem.mask == Mask((Causal(), Window(2, 0)))


@needs_transformers
def test_a_soft_cap() -> None:
    """Gemma 2 caps its logits, and has a scale of its own."""
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(0)
    config = Gemma2Config(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, head_dim=8,
        intermediate_size=32, vocab_size=50, attn_logit_softcapping=0.5, query_pre_attn_scalar=4,
        attn_implementation="eager", layer_types=["full_attention"],
    )  # fmt: skip
    (problem,) = _gives_again(
        Gemma2Model(config), {"input_ids": torch.randint(0, 50, (1, 8)), "use_cache": False}
    )
    assert problem.softcap == 0.5
    assert problem.scale == 0.5


@needs_transformers
def test_learned_sinks() -> None:
    """gpt-oss has one more logit a head."""
    from transformers import GptOssConfig, GptOssModel

    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, head_dim=8,
        intermediate_size=16, vocab_size=50, num_local_experts=2, num_experts_per_tok=1,
        attn_implementation="eager", layer_types=["full_attention"],
    )  # fmt: skip
    model = GptOssModel(config)
    with torch.no_grad():
        model.layers[0].self_attn.sinks.copy_(torch.tensor([1.0, -1.0, 2.0, 0.5]))
    (problem,) = _gives_again(model, {"input_ids": torch.randint(0, 50, (1, 8)), "use_cache": False})
    assert problem.sinks is not None
    assert problem.sinks.tolist() == [1.0, -1.0, 2.0, 0.5]


def test_a_forgotten_factor_is_noticed() -> None:
    """So that the checks above can fail: a problem with another scale does not give the answer again."""
    call = captured(Plain(gain=3.0), (torch.randn(1, 5, 16),))[0]
    assert disagreement(call) is None
    wrong = replace(call, problem=call.problem.with_(scale=call.problem.scale * 1.05))
    assert (disagreement(wrong) or 0.0) > 1e-3


def test_masks_get_their_names() -> None:
    """Booleans and added numbers alike: causal either way, windows, lengths; others stay arrays."""
    q, k, v = _qkv(queries=4, keys=6)
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


def test_other_masks_and_numbers() -> None:
    """What is added stays a bias; bfloat16 travels in float32; numbers that overflow are told."""
    q, k, v = _qkv()
    added = torch.randn(1, 2, 6, 6)
    problem = problem_of_call(q, k, v, mask=added.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf))
    assert problem.mask == Mask((Causal(),))
    assert np.array_equal(np.asarray(problem.bias)[0, 0, 5], added[0, 0, 5].numpy())
    problem = problem_of_call(*(one.bfloat16() for one in (q, k, v)))
    assert problem.dtype == "bfloat16" and problem.query.dtype == np.float32
    with pytest.raises(ValueError, match="a key of the model is not finite"):
        problem_of_call(q, k * 1e38 * 1e38, v)
