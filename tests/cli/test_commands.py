"""Commands understand their arguments, and print what other programs may rely on."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
import strategies
from hypothesis import example, given, settings
from typed import status

from attnlab.cli import HOMES, app
from attnlab.cli.options import read_workload
from attnlab.cli.runs import compare
from attnlab.correctness.check import Checked
from attnlab.workload.grid import choices
from attnlab.workload.workload import Workload

MEAN = 'LIBRARY = "numpy"\ndef attend(q, k, v): return v.mean(2, keepdims=True).repeat(q.shape[2], 2)\n'


def printed(capsys: pytest.CaptureFixture[str], *words: str, status_is: int = 0) -> str:
    """The standard output of a command. Standard error must be empty: no progress is shown."""
    assert status(*words) == status_is
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


@pytest.mark.parametrize("name", HOMES)
def test_help_shows_eight_options_at_most_and_help_all_every_one(name, capsys) -> None:
    command = app.get_command(click.Context(app), name)
    assert command is not None
    every = {one.opts[-1] for one in command.params if isinstance(one, click.Option)}
    short = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", printed(capsys, name, "--help"), re.MULTILINE))
    whole = printed(capsys, name, "--help-all")
    assert len(short) <= 10, "with --help and --help-all"
    assert all(re.search(rf"{one}\b", whole) for one in every)


def understood(words: list[str]) -> tuple[tuple[str, ...], Workload]:
    """The contenders and the workload that ``attnlab compare`` understands."""
    parsed = compare.make_context("compare", words).params
    texts = {choice.name: parsed[choice.name] for choice in choices(grid=False)}
    return parsed["contenders"], read_workload(texts, parsed["preset"])[0]


@settings(max_examples=40)
@example(Workload(d_model=9, heads=4, head_dim=2))  # 9 // 4 is 2, but 9 / 4 is no whole number
@given(strategies.workloads() | strategies.blocks())
def test_a_workloads_command_says_all_of_it(workload: Workload) -> None:
    arguments = ["torch_sdpa", "torch_eager[threads=1]", *workload.options()]
    assert understood(arguments) == (("torch_sdpa", "torch_eager[threads=1]"), workload)


def test_of_a_preset_the_middle_one_is_raced_and_the_words_repeat_it() -> None:
    texts = {"dtype": "bfloat16", "window": "-1,0"}
    workload, said, words = read_workload(texts, "llama3-8b/decode")
    assert (workload.keys, workload.queries, workload.dtype) == (4096, 1, "bfloat16")
    assert "4096" in said and "65536" in said
    assert words[:2] == ("--preset", "llama3-8b/decode") and understood(["a", "b", *words])[1] == workload
    assert read_workload({"length": "1024"}, "llama3-8b/decode")[1] == ""
    with pytest.raises(ValueError, match=r"3 parts.*llama3-8b/decode"):
        read_workload({}, "llama3-8b")


def test_a_comparison_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "numpy_vectorized numpy_blocked --length 8 --heads 2 --kv-heads 1 --causal bottom_right"
    more = ("--visits", "1", "--json")
    told = json.loads(printed(capsys, "compare", *words.split(), *more))
    assert Workload.from_dict(told["workload"]) == understood(words.split())[1]
    assert set(words.split()) <= set(shlex.split(told["command"])) and len(told["contenders"]) == 2
    assert isinstance(json.loads(printed(capsys, "compare", *words.split(), "--sittings", "--json")), list)


def test_a_wrong_backend_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -q the report is one line. A backend that is named and cannot be asked fails too."""
    (tmp_path / "mean.py").write_text(MEAN)
    words = ("check", "mean", "--implementations", str(tmp_path), "--dtypes", "float32", "-q")
    for more in (("--seed", "7"), ("--device", "cuda")):
        shown = printed(capsys, *words, *more, status_is=1)
        assert shown.startswith("mean: ") and shown.count("\n") == 1


def test_ctrl_c_leaves_what_check_has_found(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted_second(name: str, *_: object, **how: object) -> Checked:
        if name != "numpy_blocked":
            raise KeyboardInterrupt
        return Checked(name, False, "it is wrong")

    monkeypatch.setattr("attnlab.cli.checking.hold", interrupted_second)
    assert status("check", "numpy_blocked", "torch_sdpa", "-q") == 130
    assert capsys.readouterr().out == "numpy_blocked: it is wrong\n"
