"""Small models with random weights, made in the test: one of transformers, one of plain torch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz")


class Plain(nn.Module):
    """Two layers that call `scaled_dot_product_attention`; queries are `gain` times as long."""

    def __init__(self, gain: float = 1.0, heads: int = 2, dim: int = 8, causal: bool = False) -> None:
        super().__init__()
        self.gain, self.heads, self.causal = gain, heads, causal
        self.layers = nn.ModuleList(nn.Linear(heads * dim, 3 * heads * dim) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v = (
                one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in layer(x).chunk(3, dim=-1)
            )
            o = functional.scaled_dot_product_attention(q * self.gain, k, v, is_causal=self.causal)
            x = x + o.transpose(1, 2).flatten(-2)
        return x


def bert(**config: Any) -> Any:
    """A BERT with random weights of one seed: 2 layers of 2 heads of 8."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **{**sizes, **config}))


def bert_folder(folder: Path, **config: Any) -> Path:
    """A BERT as a folder holds it, with a tokenizer that knows single letters."""
    folder.mkdir(parents=True, exist_ok=True)
    bert(**config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    told = {"tokenizer_class": "BertTokenizer", "model_max_length": 32, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder
