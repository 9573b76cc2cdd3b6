"""The whole of it: on a model in a folder, on a module, as a page and as plain data; and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Plain, bert, bert_folder
from torch import Tensor, nn

import attnlab
from attnlab.__main__ import _status
from attnlab.experiments.diagnosis import Diagnosis, diagnose
from attnlab.experiments.diagnosis_errors import INPUTS, BackendError
from attnlab.experiments.trained_model import load
from attnlab.problem import distributions as captured
from attnlab.problem.grid import workloads
from attnlab.problem.inputs import problem_of
from attnlab.report import diagnosis_page

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
TEXT = " ".join("a quick brown fox jumps over the lazy dog".replace(" ", ""))


def _plain(**asked: Any) -> Diagnosis:
    torch.manual_seed(0)
    asked = {"backends": ["numpy_blocked", "torch_sdpa"], "race": False, **asked}
    return diagnose(Plain(gain=6.0), torch.randn(1, 24, 16), **asked)


def _row(found: Diagnosis, backend: str, dtype: str) -> BackendError:
    (one,) = (row for row in found.errors if (row.backend, row.dtype) == (backend, dtype))
    return one


def test_errors_are_those_of_the_number_format() -> None:
    """Float32 rounds 2^13 times finer than float16; a backend adds to what rounding the inputs does, and not much."""
    found = _plain()
    inputs, whole = _row(found, INPUTS, "float16"), _row(found, "torch_sdpa", "float16")
    assert 2**-13 < inputs.error < 2**-7
    assert inputs.error / 3 < whole.error < 10 * inputs.error
    assert 2**-26 < _row(found, "torch_sdpa", "float32").error < 2**-17
    assert _row(found, INPUTS, "float32").error == 0
    assert "NumPy has no bfloat16" in _row(found, "numpy_blocked", "bfloat16").reason
    assert all(one.worst >= one.error for one in found.errors)


def test_plain_data_and_back() -> None:
    """A number that does not exist becomes null, and NaN again."""
    found = _plain()
    text = json.dumps(found.to_json(), allow_nan=False)
    again = Diagnosis.from_json(json.loads(text))
    assert math.isnan(again.heads[0].separators)
    assert json.dumps(again.to_json(), allow_nan=False) == text
    with pytest.raises(ValueError, match="a diagnosis of format 1 is needed"):
        Diagnosis.from_json({"format": 2})


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    found = _plain()
    page = diagnosis_page.write(found, tmp_path).read_text()
    high = found.most_frozen[0]
    assert f"{len(found.frozen)} of 4 heads" in page
    assert f"{high.beta:.3g} (layer {high.layer}, head {high.head})" in page
    assert (tmp_path / "figures" / "spread.png").stat().st_size > 1000
    assert (tmp_path / "figures" / "entropy.png").stat().st_size > 1000
    assert page.count("![") == 2
    assert "![]" not in page
    stored = json.loads((tmp_path / "diagnosis.json").read_text())
    assert stored["heads"][0]["beta"] == found.heads[0].beta
    (table,) = (part for part in page.split("\n\n") if part.startswith("|") and "H by chance" in part)
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_the_name_of_a_head_covers_no_point_of_another() -> None:
    """In either figure, where a point lies just where the name would stand first."""
    from dataclasses import replace

    from attnlab.experiments import diagnosis_figures as figures

    one = _plain().heads[0]
    beyond = replace(one, layer=0, head=0, beta=2 * one.critical, entropy=1.0, expected_entropy=2.0)
    near = replace(beyond, head=1, entropy=1.07, expected_entropy=2.12, beta=0.9 * one.critical)
    far = replace(near, head=2, entropy=4.0, expected_entropy=4.1)
    figure, _ = figures.entropies([beyond, near, far])
    figure.canvas.draw()
    (panel,) = figure.axes
    points = panel.transData.transform(
        [(each.expected_entropy, each.entropy) for each in (beyond, near, far)]
    )
    names = [text for text in panel.texts if text.get_text() in ("0.0", "0.1", "0.2")]
    assert len(names) == 3
    assert not any(text.get_window_extent().count_contains(points) for text in names)


def test_no_name_becomes_markdown(tmp_path: Path) -> None:
    """What a model or a text is called is data."""
    from dataclasses import replace

    found = replace(_plain(), model="<b>`x`", text="![](http://x)\x1b[31m", race_sentences=("<script>",))
    page = diagnosis_page.write(found, tmp_path).read_text()
    assert "<b>" not in page
    assert "<script>" not in page
    assert "\x1b" not in page
    assert page.count("![") == 2


def test_inputs_that_were_kept_are_the_layers_own(tmp_path: Path) -> None:
    """They race: `--inputs` takes each layer with the mask that the model asked for."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    file = tmp_path / "qkv.safetensors"
    torch.manual_seed(0)
    model, x = Plain(causal=True), torch.randn(1, 12, 16)
    diagnose(model, x, backends=[], race=False, save_inputs=file)
    assert captured.layers(str(file)) == ("layer0", "layer1")
    one, _ = workloads({"distribution": str(file)})
    assert one.causal == "top_left"
    q = model.layers[0](x).detach().chunk(3, dim=-1)[0].unflatten(-1, (2, -1)).transpose(1, 2)
    assert np.array_equal(problem_of(one).query, q.numpy())


def test_the_quickest_backends_race_on_the_inputs() -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    found = _plain(race=True, backends=["torch_sdpa", "torch_sdpa"])
    assert found.no_race == ""
    outcomes = {one["outcome"] for one in found.race["contenders"]}
    assert outcomes == {"measured"}
    assert found.race["contenders"][0]["relative_error"] < 1e-5


@needs_transformers
def test_a_model_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command: layers by their names, special tokens by the tokenizer, page and data."""
    folder, text = bert_folder(tmp_path / "tiny"), tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["diagnose", str(folder), "--text", str(text), "--out", str(tmp_path / "out"), "--no-race"]
    assert _status([*words, "--backends", "torch_sdpa"]) == 0
    said = capsys.readouterr().out
    found = Diagnosis.from_json(json.loads((tmp_path / "out" / "diagnosis.json").read_text()))
    assert found.tokens == 32
    assert found.tokens_there == 2 + len(TEXT.split())
    assert [one.module for one in found.layers] == [f"encoder.layer.{n}.attention.self" for n in range(2)]
    assert len(found.heads) == 4
    assert all(0 < one.separators < 0.5 for one in found.heads)
    assert str(tmp_path / "out" / "diagnosis.md") in said
    assert "4 heads" in said


@needs_transformers
def test_untrained_weights_hardly_depart_from_chance(tmp_path: Path) -> None:
    """Weights of a standard deviation of 0.02 spread no logits: all keys take part, as the null says."""
    found = diagnose(bert_folder(tmp_path / "tiny"), TEXT, backends=[], race=False)
    for one in found.heads:
        assert not one.beyond
        assert one.entropy == pytest.approx(math.log(found.tokens), abs=0.01)
        assert one.departure == pytest.approx(0.0, abs=0.01)
        assert one.first == pytest.approx(1 / found.tokens, rel=0.1)


class _OwnKernel(nn.Module):
    """Attention that no hook sees."""

    config = type("Config", (), {"num_attention_heads": 2})()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, dim=-1) @ x


class _Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)


class _More(nn.Module):
    """Calls the function, and then something that no word of the contract says: dropout that stays on."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


X = torch.ones(1, 1, 4, 4)


@pytest.mark.parametrize(
    ("model", "inputs", "told"),
    [
        (nn.Linear(4, 4), X, "Linear calls no attention"),
        (_OwnKernel(), X, "computes attention with kernels of its own"),
        (nn.Linear(4, 4, device="meta"), X, r"lies on meta \(weight\), and it is diagnosed on the CPU"),
        (_Quantised(), X, "the weight weight is torch.int8: quantised"),
        (_More(), torch.randn(1, 1, 64, 4), "does more than softmax"),
        (Plain(), torch.ones(1, 3), "the model cannot be called: "),
        (Plain(), "a text", "a module takes tensors"),
        (3, X, "model must be a folder or a torch module, got int"),
        (Plain(), torch.ones(1, 1, 16), "nothing to choose"),
    ],
)
def test_modules_that_cannot_be_diagnosed(model: Any, inputs: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as fault:
        attnlab.diagnose(model, inputs, backends=[], race=False)
    assert "\n" not in str(fault.value)


@needs_transformers
def test_more_tokens_than_a_module_takes() -> None:
    with pytest.raises(ValueError, match="the model takes at most 32 tokens, got 33"):
        diagnose(bert(), {"input_ids": torch.ones(1, 33, dtype=torch.long)}, backends=[], race=False)


def _weights(folder: Path, **arrays: Any) -> None:
    from safetensors.torch import save_file

    save_file(arrays, str(folder / "model.safetensors"))


def _without(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def _config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@needs_transformers
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_pickled, "holds pickled weights .pytorch_model.bin., which may run anything"),
        (_without("model.safetensors"), "holds no weights"),
        (_without("config.json"), "has no config.json"),
        (_without("vocab.txt"), "has no tokenizer"),
        (_config(quantization_config={"quant_method": "gptq"}), "is quantised"),
        (_config(model_type="house_made", auto_map={"AutoModel": "x.Y"}), "'house_made', which transformers"),
        (_config(hidden_size="wide"), "cannot be loaded"),
        (lambda folder: _weights(folder, a=torch.ones(2, dtype=torch.int8)), "is quantised .a in I8."),
        (lambda folder: _weights(folder, a=torch.ones(2)), "lacks .* of its weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "is no safetensors file"),
    ],
)
def test_folders_that_cannot_be_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, told: str
) -> None:
    """One line on standard error, exit status 2, and no page."""
    import re

    folder, text = bert_folder(tmp_path / "tiny"), tmp_path / "text.txt"
    text.write_text(TEXT)
    spoil(folder)
    assert _status(["diagnose", str(folder), "--text", str(text), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    (line,) = (one for one in said.splitlines() if one.startswith("attnlab: "))
    assert re.search(told, line)
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "diagnosis.md").exists()


@needs_transformers
@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        (TEXT, ["--length", "33"], "--length 33: tiny takes at most 32 tokens"),
        ("a b", ["--length", "20"], "--length 20: the text has 4 tokens"),
        (TEXT, ["--length", "1"], "--length must be at least 2 tokens"),
        ("", [], "is empty"),
        (b"\xff\xfe", [], "it is not UTF-8"),
        (None, [], "cannot be read: No such file"),
        (TEXT, ["--backends", "torch_spda"], "did you mean"),
        (TEXT, ["--save-inputs", "kept.bin"], r"a file of inputs is written FILE\.safetensors"),
    ],
)
def test_texts_and_options_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, options: list[str], told: str
) -> None:
    import re

    folder, file = bert_folder(tmp_path / "tiny"), tmp_path / "text.txt"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    words = ["diagnose", str(folder), "--text", str(file), "--out", str(tmp_path / "out"), "--no-race"]
    assert _status([*words, *options]) == 2
    said = capsys.readouterr().err
    (line,) = (one for one in said.splitlines() if one.startswith("attnlab: "))
    assert re.search(told, line)
    assert not (tmp_path / "out" / "diagnosis.md").exists()


def test_a_name_on_a_hub_is_not_fetched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert (
        _status(["diagnose", "bert-base-uncased", "--text", str(text), "--out", str(tmp_path / "out")]) == 2
    )
    assert "nothing is downloaded" in capsys.readouterr().err


@needs_transformers
def test_loading_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert load(bert_folder(tmp_path / "tiny")).limit == 32


@needs_transformers
def test_without_the_extra_it_says_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnlab.libraries import host

    folder = bert_folder(tmp_path / "tiny")
    monkeypatch.setattr(host, "_is_there", lambda module: module != "transformers")
    with pytest.raises(
        attnlab.Unavailable, match=r"transformers is not installed; pip install 'attnlab\[diagnose\]'"
    ):
        load(folder)
