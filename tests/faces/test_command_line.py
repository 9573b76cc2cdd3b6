"""The command line: a user's mistake is one line with the mend and status 2, never a traceback."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path

import pytest
import strategies
from hypothesis import example, given
from typed import status

from attnlab.cli.compare import compare
from attnlab.cli.options import read_workload, typed
from attnlab.cli.run import run
from attnlab.problem.fields import split_names
from attnlab.problem.grid import choices
from attnlab.problem.workload import Workload

MISTAKES = {
    "nonsense": "nonsense",
    "run --backends torch_egaer": "did you mean torch_eager",
    "run --backends a,,b": "separated by single commas",
    "run --lengths 0": "each of which must be a whole number of at least 1, got '0'",
    "run --heads -1": "--heads takes values between commas, each of which must be a whole number",
    "run --dtypes float31": "--dtypes must be one of float16, bfloat16, float32, float64, got 'float31'",
    "run --device tpu": "--device must be one of cpu, cuda, got 'tpu'",
    "run --window 3000,0": "--window: a window reaches no further than the 64 keys, got (3000, 0)",
    "run --seconds 0": "--seconds must be above 0",
    "run --experiments nope": "no experiment is called 'nope'",
    "run --baseline naive_loop --backends torch_eager": "baseline must be one of",
    "run --plan missing.toml": "missing.toml cannot be read: No such file",
    "run --plan plan.toml": "plan.toml: causal must be one of false, top_left, bottom_right, got 'x'",
    "run --plan plan.toml --causal=y": "--causal must be one of false, top_left",
    "run --implementations missing": "--implementations must name a folder",
    "run --out file": "is a file; give another with --out",
    "compare torch_sdpa": "at least two contenders",
    "compare torch_sdpa[x=1] torch_eager": "torch_sdpa has no setting 'x'",
    "check openvino[precision=f8]": "precision must be f32 or bf16 or f16, got 'f8'",
    "run --backends torch_eager,openvino[precison=bf16]": "openvino has no setting 'precison'",
    "compare torch_sdpa torch_eager --length -5": "--length must be a whole number of at least 1",
    "compare torch_sdpa torch_eager --length x": "--length must be a whole number",
    "compare torch_sdpa torch_eager --kv-heads 3": "--kv-heads must divide the 8 heads, got 3",
    "compare torch_sdpa torch_eager --causal=maybe": "--causal must be one of false, top_left",
    "compare torch_sdpa torch_eager --window 3": "--window: a window is two whole numbers",
    "compare torch_sdpa torch_eager --key-lengths 1,2": "--key-lengths needs one length a batch",
    "compare torch_sdpa torch_eager --mask foo": "--mask: a mask is written as one or more of",
    "compare torch_sdpa torch_eager --processes 0": "--processes must be above 0, got 0",
    "compare torch_sdpa[pages=small] torch_eager": "pages must be huge or default, got 'small'",
    "compare torch_sdpa torch_eager[slowed=x]": "slowed must be a percentage from 0 to 1000, got 'x'",
    "compare torch_sdpa torch_eager --bias given": "--bias: 'given' stands for an array",
    "compare torch_sdpa torch_eager --sinks=2": "--sinks must be true or false, got '2'",
    "compare torch_sdpa torch_eager --softcap -1": "--softcap must be a number above 0",
    "check nope": "no backend is called 'nope'",
    "numerics satturation": "did you mean saturation",
    "claims nope": "nope",
    "report missing": "missing holds no run",
    "backends --device tpu": "--device must be one of",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line(
    typed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, and standard output stays empty."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("plan.toml").write_text("causal = 'x'", encoding="utf-8")
    assert status(*typed.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert MISTAKES[typed] in shown.err and shown.err.count("\n") == 1 and "Traceback" not in shown.err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """All commands with what they do."""
    assert status() == 2
    assert "compare" in capsys.readouterr().out


def test_what_can_run_here_is_listed_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that cannot say why."""
    assert status("backends") == 0
    shown = capsys.readouterr().out
    assert "numpy_blocked" in shown and "runs on CUDA only" in shown


def test_a_wrong_backend_fails_the_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In JSON for other programs; one that is named and cannot be asked fails too."""
    (tmp_path / "mean.py").write_text(
        'LIBRARY = "numpy"\ndef attend(q, k, v): return v.mean(2, keepdims=True).repeat(q.shape[2], 2)\n'
    )
    assert status("check", "mean", "--implementations", str(tmp_path), "--json") == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["passed"]) == ("mean", False) and told["reason"]
    assert status("check", "torch_sdpa_cudnn") == 1


def test_names_between_commas_may_hold_settings() -> None:
    """The commas inside brackets are the contender's own."""
    assert split_names("a,b[threads=1,X=2],c") == ["a", "b[threads=1,X=2]", "c"]


def said(arguments: list[str]) -> tuple[tuple[str, ...], Workload]:
    """The contenders and the workload that ``attnlab compare`` understands."""
    parsed = compare.make_context("compare", arguments).params
    texts = {choice.name: parsed[choice.name] for choice in choices(grid=False)}
    return parsed["contenders"], read_workload(texts)


@example(Workload(d_model=9, heads=4, head_dim=2))  # 9 // 4 is 2, but 9 / 4 is no whole number
@given(strategies.workloads() | strategies.blocks())
def test_a_workloads_command_says_all_of_it(workload: Workload) -> None:
    """Whatever its fields are, the printed command is understood as the same workload."""
    program, name, *arguments = shlex.split(workload.command("torch_sdpa", "torch_eager[threads=1]"))
    assert (program, name) == ("attnlab", "compare")
    assert said(arguments) == (("torch_sdpa", "torch_eager[threads=1]"), workload)


@pytest.mark.parametrize(
    ("typed", "causal", "sinks"),
    [
        ("--causal a b", "top_left", False),
        ("--sinks --causal bottom_right a b", "bottom_right", True),
        ("a --causal=bottom_right --sinks true b", "bottom_right", True),
        ("--sinks a --causal false b", False, True),
        ("a b --causal", "top_left", False),
        ("--window -1,0 a b --causal", "top_left", False),
    ],
)
def test_a_flag_may_stand_bare_before_an_argument(typed: str, causal: str | bool, sinks: bool) -> None:
    """Only what is a value of it belongs to it."""
    names, workload = said(typed.split())
    assert names == ("a", "b")
    assert (workload.causal, workload.sinks) == (causal, sinks)


def test_every_field_of_a_workload_is_an_option_with_a_help_line() -> None:
    """Of `compare` by its name, of `run` by its plural where a grid takes several."""
    for command, plurals in ((compare, {}), (run, {"heads": "heads", "dtype": "dtypes"})):
        helps = {one.name: getattr(one, "help", None) for one in command.params}
        assert all(helps[plurals.get(field.name, field.name)] for field in dataclasses.fields(Workload))


def test_a_comparison_tells_the_workload_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """And exits with 0 where both could be measured: on a busy machine they may be over budget."""
    typed = (
        "numpy_vectorized numpy_blocked --length 8 --heads 2 --kv-heads 1 --causal bottom_right --window 4,0"
    )
    left = status("compare", *typed.split(), "--seconds", "0.2", "--json")
    told = json.loads(capsys.readouterr().out)
    measured = [one["outcome"] == "measured" for one in told["contenders"]]
    assert left == (0 if all(measured) else 1) and len(measured) == 2
    assert Workload.from_dict(told["workload"]) == said(typed.split())[1]
    assert set(typed.split()) <= set(shlex.split(told["command"]))


@pytest.mark.parametrize("out", [["--out", "elsewhere"], ["--out=elsewhere"]])
def test_a_command_to_repeat_names_neither_the_folder_written_nor_the_home_folder(
    out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(Path.home() / "own")
    monkeypatch.setattr(
        sys, "argv", ["/usr/bin/attnlab", "run", "--lengths", "64", *out, "--implementations", own]
    )
    assert shlex.split(typed()) == ["attnlab", "run", "--lengths", "64", "--implementations", "~/own"]
