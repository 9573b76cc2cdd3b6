"""The command line: a user's mistake is one line with the mend and status 2, never a traceback."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.__main__ import main
from attnlab.commands.compare import compare
from attnlab.commands.options import read_workload
from attnlab.commands.run import run
from attnlab.contract.distributions import DISTRIBUTIONS
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.fields import split_names
from attnlab.contract.mask_part import OPEN, Part, Shape
from attnlab.contract.workload import BIASES, DEVICES, DIRECTIONS, GIVEN, LAYOUTS, Workload
from attnlab.program.grid import choices


def status(*arguments: str) -> int:
    """The exit status of ``attnlab ARGUMENTS``."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


MISTAKES = [
    (("nonsense",), "nonsense"),
    (("run", "--backends", "torch_egaer"), "did you mean torch_eager"),
    (("run", "--backends", "a,,b"), "separated by single commas"),
    (("run", "--lengths", "0"), "each of which must be a whole number of at least 1, got '0'"),
    (("run", "--heads", "-1"), "--heads takes values between commas, each of which must be a whole number"),
    (
        ("run", "--dtypes", "float31"),
        "--dtypes must be one of float16, bfloat16, float32, float64, got 'float31'",
    ),
    (("run", "--device", "tpu"), "--device must be one of cpu, cuda, got 'tpu'"),
    (("run", "--window", "3000,0"), "--window: a window reaches no further than the 64 keys, got (3000, 0)"),
    (("run", "--seconds", "0"), "--seconds must be above 0"),
    (("run", "--experiments", "nope"), "no experiment is called 'nope'"),
    (("run", "--baseline", "naive_loop", "--backends", "torch_eager"), "baseline must be one of"),
    (("run", "--plan", "missing.toml"), "missing.toml cannot be read: No such file"),
    (
        ("run", "--plan", "plan.toml"),
        "plan.toml: causal must be one of false, top_left, bottom_right, got 'x'",
    ),
    (("run", "--plan", "plan.toml", "--causal=y"), "--causal must be one of false, top_left"),
    (("run", "--implementations", "missing"), "--implementations must name a folder"),
    (("run", "--out", "file"), "is a file; give another with --out"),
    (("compare", "torch_sdpa"), "at least two contenders"),
    (("compare", "torch_sdpa[x=1]", "torch_eager"), "unknown setting 'x'"),
    (
        ("compare", "torch_sdpa", "torch_eager", "--length", "-5"),
        "--length must be a whole number of at least 1",
    ),
    (("compare", "torch_sdpa", "torch_eager", "--length", "x"), "--length must be a whole number"),
    (
        ("compare", "torch_sdpa", "torch_eager", "--kv-heads", "3"),
        "--kv-heads must divide the 8 heads, got 3",
    ),
    (("compare", "torch_sdpa", "torch_eager", "--causal=maybe"), "--causal must be one of false, top_left"),
    (("compare", "torch_sdpa", "torch_eager", "--window", "3"), "--window: a window is two whole numbers"),
    (
        ("compare", "torch_sdpa", "torch_eager", "--key-lengths", "1,2"),
        "--key-lengths needs one length a batch",
    ),
    (
        ("compare", "torch_sdpa", "torch_eager", "--mask", "foo"),
        "--mask: a mask is written as one or more of",
    ),
    (("compare", "torch_sdpa", "torch_eager", "--bias", "given"), "--bias: 'given' stands for an array"),
    (("compare", "torch_sdpa", "torch_eager", "--sinks=2"), "--sinks must be true or false, got '2'"),
    (("compare", "torch_sdpa", "torch_eager", "--softcap", "-1"), "--softcap must be a number above 0"),
    (("check", "nope"), "no backend is called 'nope'"),
    (("numerics", "satturation"), "did you mean saturation?"),
    (("claims", "nope"), "nope"),
    (("report", "missing"), "missing holds no run"),
    (("backends", "--device", "tpu"), "--device must be one of"),
]


@pytest.mark.parametrize(("arguments", "mend"), MISTAKES, ids=[" ".join(one) for one, _ in MISTAKES])
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...],
    mend: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On standard error, and standard output stays empty."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("plan.toml").write_text("causal = 'x'", encoding="utf-8")
    assert status(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert mend in shown.err and shown.err.count("\n") == 1 and "Traceback" not in shown.err


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


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any that the command line can say: every field takes any of its values."""
    batch, kv_heads, queries, keys = (draw(st.integers(1, most)) for most in (3, 3, 9, 9))
    side = st.integers(OPEN, keys)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = Part.kinds[draw(st.sampled_from(sorted(set(Part.kinds) - {GIVEN})))]
    mask = kind.drawn(rng, Shape(batch, kv_heads, queries, keys))
    fields = {
        "batch": st.just(batch),
        "heads": st.sampled_from([kv_heads, 2 * kv_heads]),
        "kv_heads": st.just(kv_heads),
        "queries": st.just(queries),
        "keys": st.just(keys),
        "head_dim": st.integers(1, 9),
        "value_dim": st.none() | st.integers(1, 9),
        "dtype": st.sampled_from(DTYPES),
        "device": st.sampled_from(DEVICES),
        "causal": st.sampled_from([False, "top_left", "bottom_right"]),
        "window": st.none() | st.tuples(side, side),
        "key_lengths": st.none() | st.tuples(*[st.integers(0, keys)] * batch),
        "mask": st.sampled_from(["", mask.text if mask else ""]),
        "bias": st.sampled_from([one for one in BIASES if one != GIVEN]),
        "softcap": st.none() | st.floats(1e-9, 1e9),
        "sinks": st.booleans(),
        "scale": st.none() | st.floats(-8, 8),
        "layout": st.sampled_from(LAYOUTS),
        "direction": st.sampled_from(sorted(DIRECTIONS)),
        "distribution": st.sampled_from(sorted(DISTRIBUTIONS)),
        "seed": st.integers(0, 2**32),
    }
    assert set(fields) == {field.name for field in dataclasses.fields(Workload)}
    return Workload(**draw(st.fixed_dictionaries(fields)))


def said(arguments: list[str]) -> tuple[tuple[str, ...], Workload]:
    """The contenders and the workload that ``attnlab compare`` understands."""
    parsed = compare.make_context("compare", arguments).params
    texts = {choice.name: parsed[choice.name] for choice in choices(grid=False)}
    return parsed["contenders"], read_workload(texts)


@given(workloads())
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


def test_grouped_heads_a_window_and_a_backward_pass_are_raced(capsys: pytest.CaptureFixture[str]) -> None:
    """By both, in turns; the JSON has the command that says it all."""
    asked = [
        "--length",
        "32",
        "--heads",
        "4",
        "--kv-heads",
        "2",
        "--causal",
        "bottom_right",
        "--window",
        "8,0",
    ]
    asked += ["--direction", "training", "--seconds", "0.2"]
    assert status("compare", "torch_sdpa", "torch_eager", *asked, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["outcome"] for one in told["contenders"]] == ["measured", "measured"]
    assert told["workload"]["window"] == [8, 0] and told["workload"]["kv_heads"] == 2
    assert set(asked) <= set(shlex.split(told["command"]))
