"""A module's heads, read from calls of PyTorch's functions, compared with the formula; modules that are refused."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typed import status

import attnlab

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz")


class Plain(nn.Module):
    """Two causal layers of two heads, fused or (`eager`) written out as in many models; queries are times `gain`.

    hiding : the score of a hidden pair if attention is written out, else what a mask adds to it.
    """

    def __init__(self, gain: float = 1.0, eager: bool = False, hiding: float | None = None) -> None:
        super().__init__()
        self.gain, self.eager, self.hiding = gain, eager, hiding
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in layer(x).chunk(3, dim=-1))
            q = q * self.gain
            hidden = ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            if self.eager:
                least = torch.finfo(x.dtype).min if self.hiding is None else self.hiding
                scores = (q @ k.mT / math.sqrt(8)).masked_fill(hidden, least)
                o = functional.dropout(torch.softmax(input=scores, dim=-1), 0.1, self.training) @ v
            elif self.hiding is not None:
                mask = torch.zeros(hidden.shape).masked_fill(hidden, self.hiding)
                o = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            else:
                o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + o.transpose(1, 2).flatten(-2)
        return x


def _made(**asked: Any) -> tuple[Plain, Tensor]:
    torch.manual_seed(0)
    return Plain(**asked), torch.randn(2, 9, 16)


def test_heads_against_the_formula_and_the_model_as_it_was() -> None:
    model, x = _made(gain=4.0)
    model.train()
    before = functional.scaled_dot_product_attention, functional.softmax
    found = attnlab.diagnose(model, x)
    assert (functional.scaled_dot_product_attention, functional.softmax) == before
    assert model.training and not model._forward_hooks and torch.backends.mha.get_fastpath_enabled()
    q, k, _ = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in model.layers[0](x).chunk(3, dim=-1))
    s = (4 * q @ k.mT / math.sqrt(8)).detach().double().numpy()[:, 1]
    rows = [s[b, i, : i + 1] for b in range(2) for i in range(1, 9)]
    weights = [np.exp(row) / np.exp(row).sum() for row in rows]
    (head,) = (one for one in found.heads if (one.call, one.head) == (0, 1))
    assert head.beta == pytest.approx(math.sqrt(np.mean([row.var() for row in rows])), rel=1e-5)
    assert head.critical == pytest.approx(math.sqrt(np.mean([2 * math.log(len(row)) for row in rows])))
    assert head.entropy == pytest.approx(
        np.mean([-(p * np.log(p)).sum() / math.log(len(p)) for p in weights]), rel=1e-5
    )
    assert head.largest_weight == pytest.approx(np.mean([p.max() for p in weights]), rel=1e-5)
    assert head.first == pytest.approx(np.mean([p[0] for p in weights]), rel=1e-5)
    assert head.largest_logit == pytest.approx(max(row.max() for row in rows), rel=1e-5)
    assert head.log_sum == pytest.approx(np.mean([np.log(np.exp(row).sum()) for row in rows]), rel=1e-5)


def test_written_out_attention_is_the_same_and_data_and_figure() -> None:
    fused, eager = (attnlab.diagnose(*_made(eager=eager, gain=30.0)) for eager in (False, True))
    assert [one.beta for one in fused.heads] == pytest.approx([one.beta for one in eager.heads], rel=1e-5)
    assert fused.frozen and fused.frozen[0].beta > fused.frozen[0].critical and fused.keys == 9
    assert json.loads(json.dumps(asdict(fused)))["heads"][3]["head"] == 1
    assert "beyond freezing" in fused.figure().axes[0].get_title(loc="left")


def test_the_encoder_of_pytorch_is_seen_without_its_fast_path() -> None:
    """PyTorch's own code calls the function there, where no function mode sees it. Modules are named by their paths."""
    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True)
    found = attnlab.diagnose(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 7, 16)
    )
    assert [one.module for one in found.heads] == [f"layers.{at // 4}.self_attn" for at in range(8)]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("hiding", [-math.inf, -1e9, -1e4, torch.finfo(torch.float16).min])
def test_a_hidden_pair_is_none_whatever_number_hides_it(hiding: float, eager: bool) -> None:
    plain, masked = attnlab.diagnose(*_made()), attnlab.diagnose(*_made(eager=eager, hiding=hiding))
    assert [one.beta for one in masked.heads] == pytest.approx([one.beta for one in plain.heads], rel=1e-3)
    assert [one.critical for one in masked.heads] == [one.critical for one in plain.heads]


class Calls(nn.Module):
    """A module that applies `function` to one tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.frozen = function, nn.Dropout().eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_heads_of_every_shape_and_no_other_softmax() -> None:
    """The softmax of an output layer or of a router is not attention."""
    block, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(3, 7, 16)
    assert len(attnlab.diagnose(block, (x, x, x)).heads) == 4

    def attends(*shape: int, **rest: Any) -> attnlab.Diagnosis:
        given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return attnlab.diagnose(
            Calls(lambda x: functional.scaled_dot_product_attention(x, x, x, **rest)), given
        )

    assert [len(attends(*shape).heads) for shape in ((32, 16), (2, 5, 8), (2, 3, 4, 5, 8))] == [1, 2, 4]
    assert attends(32, 16, scale=0.0).heads[0].beta == 0

    def language_model(x: Tensor) -> Tensor:
        return functional.softmax(x @ torch.einsum("bij,bjd->bid", x.mT.softmax(-1), x).mT, dim=-1)

    model = Calls(language_model).train()
    model.frozen.eval()
    assert {one.call for one in attnlab.diagnose(model, torch.randn(2, 5, 8)).heads} == {0}
    assert model.training and not model.frozen.training


@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        (nn.Linear(4, 4), torch.ones(1, 4), "Linear calls no attention"),
        (Plain(), torch.ones(1, 1, 16), "every query sees one key"),
        (Calls(lambda x: x.softmax(-1)), torch.ones(1, 2, 3), "Calls calls no attention"),
        (Plain(), torch.full((1, 3, 16), math.nan), "call 0, of the module itself, has logits that are NaN"),
        ("a folder", torch.ones(1), "must be a torch.nn.Module"),
    ],
)
def test_modules_that_cannot_be_diagnosed(model: Any, inputs: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as fault:
        attnlab.diagnose(model, inputs)
    assert "\n" not in str(fault.value)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_model_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command gives a table, data and a figure, also for an untrained control. Mistakes give exit status 2."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
    folder, text = tmp_path / "tiny", tmp_path / "text.txt"
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    text.write_text("a b c d e f g h")
    words = ["diagnose", str(folder), "--text", str(text), "--length", "32"]
    for control in ([], ["--untrained", "1"]):
        out = tmp_path / f"out{len(control)}"
        assert status(*words, "--out", str(out), *control) == 0
        assert len(json.loads((out / "diagnosis.json").read_text())["heads"]) == 4
        assert (out / "spread.png").stat().st_size > 1000
    assert "0 of 4 heads" in capsys.readouterr().out
    assert status(*words[:-1], "33", "--out", str(tmp_path / "no")) == 2
    assert "from 2 to the 32 tokens" in capsys.readouterr().err
    (folder / "model.safetensors").unlink()
    assert status(*words, "--out", str(tmp_path / "no")) == 2
