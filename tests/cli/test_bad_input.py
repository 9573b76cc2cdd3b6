"""Every mistake gives one line on standard error that names it, and exit status 2: no traceback, no other output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typed import status

from attnlab.cli import REMOVED

#: by command line, typed in the folder of the fixture `folder`: what the error line contains
MISTAKES = {
    # commands and options
    "gate . HEAD --backends numpy_blocked --summary missing/x.md": "missing/x.md",
    "judge mine.py --jsonl missing/x.jsonl": "missing/x.jsonl",
    # values of fields
    "compare a b --kv-heads 3": "--kv-heads",
    # files and folders
    "run --plan bad.toml": "bad.toml: causal",
    "run --out full": "full",
    # options that would do nothing
    "numerics --claims boltzmann --out new": "leave out --out",
    f"show {'a' * 5000}": "File name too long",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the commands, with files of several kinds."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("full").mkdir()
    Path("full/notes").touch()
    Path("plan.toml").write_text('backends = ["numpy_blocked"]\nlengths = [8]\nheads = [1]')
    Path("bad.toml").write_text("causal = 'x'")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*typed.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("attnlab: ") and shown.err.count("\n") == 1 and "Traceback" not in shown.err
    assert MISTAKES[typed] in shown.err


#: by the text of a plan file: what the error line contains
SLIPS = {
    "length = [64]": "unknown key 'length'; did you mean lengths",
    "[limits]\nvisits = 1_000_000_000_000": "visits must be above 0 and at most 1,000",
    f"lengths = {list(range(1, 20_002))}\nheads = [1]": "at most 20,000 workloads, got 20,001: make several",
    f"lengths = {[1000] * 2_000_000}": "8,388,608 bytes",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("text", SLIPS)
def test_a_slip_in_a_plan_file_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.toml").write_text(text, encoding="utf-8")
    assert status("run", "--plan", "plan.toml") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "plan.toml" in shown.err and SLIPS[text] in shown.err


@pytest.mark.parametrize("gone", REMOVED)
def test_what_is_gone_is_one_line_that_says_what_to_do(gone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*gone.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert f"attnlab {gone} is gone" in shown.err and REMOVED[gone] in shown.err


def test_a_gate_takes_the_sizes_of_a_file_of_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of visits is refused here, not the sizes, which nobody typed."""
    save = pytest.importorskip("safetensors.numpy").save_file
    arrays = {f"a.{name}": np.ones((1, 2, 8, 4), np.float32) for name in ("query", "key", "value")}
    save(arrays, "qkv.safetensors")
    words = "gate numpy==2.3.0 numpy==2.4.0 --backends numpy_blocked --visits 2 --inputs qkv.safetensors/a"
    assert status(*words.split()) == 2
    assert "at least 4" in capsys.readouterr().err
