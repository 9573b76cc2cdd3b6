"""The share of a pass that attention takes, on a clock that only the test moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Plain, bert, bert_folder, needs_transformers
from torch import Tensor, nn
from torch.nn import functional
from typed import status

from attnlab.lab import capture
from attnlab.lab.share import attention_share


class Hand:
    """A clock that stands still unless it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def moves(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Each call of PyTorch's attention takes 3 seconds of it."""
    hand, real = Hand(), functional.scaled_dot_product_attention

    def attend(*args: Any, **rest: Any) -> Tensor:
        hand.moves(3.0)
        return real(*args, **rest)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(capture, "_SDPA", attend)
    return hand


def test_share_and_what_follows_from_it(clock: Hand) -> None:
    """Two calls of 3 s in a pass of 20 s; the model is left as it was."""
    model = Plain().train()
    model.register_forward_pre_hook(lambda *_: clock.moves(14.0))
    found = attention_share(model, torch.randn(1, 12, 16), clock=clock)
    assert (found.calls, found.seconds[0], found.seconds_on_clock[0], found.attention[0]) == (2, 20, 20, 6)
    assert found.quartiles == pytest.approx([0.3] * 3)
    assert found.gain(1.4) == pytest.approx(1 / (0.7 + 0.3 / 1.4))
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["gains"]["1.4"] == found.gain(1.4)
    assert (
        "30 % of a forward pass" in found.sentences()[0]
        and "6.00 s and a pass 20.0 s" in found.sentences()[0]
    )
    assert "without any, 1.429 times" in found.sentences()[2]
    assert model.training and functional.scaled_dot_product_attention is capture._SDPA


def test_what_has_no_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="calls no attention"):
        attention_share(nn.Linear(4, 4), torch.randn(1, 4))


@needs_transformers
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_models_of_transformers_are_timed_as_they_are(kind: str) -> None:
    """Each layer's attention once, whichever way it goes; other kinds would not be theirs."""
    model, tokens = bert(attn_implementation=kind), {"input_ids": torch.zeros(1, 8, dtype=torch.long)}
    found = attention_share(model, tokens)
    assert found.calls == 2 and min(found.attention) > 0
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="flex_attention"):
        attention_share(model, tokens)


@needs_transformers
def test_where_prints_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = bert_folder(tmp_path / "model")
    (tmp_path / "text.txt").write_text("a b c d e f g h")
    assert status("diagnose", str(folder), "--text", "text.txt", "--where", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == 10 and told["calls"] == 2
    assert not (tmp_path / "reports").exists()
