"""The command line: a user's mistake is one line with the mend and status 2, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnlab.__main__ import main
from attnlab.commands.options import split_names, split_sizes


def status(*arguments: str) -> int:
    """The exit status of ``attnlab ARGUMENTS``."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


MISTAKES = [
    (("nonsense",), "nonsense"),
    (("run", "--backends", "torch_egaer"), "did you mean torch_eager"),
    (("run", "--backends", "a,,b"), "separated by single commas"),
    (("run", "--lengths", "0"), "--lengths takes whole numbers of at least 1"),
    (("run", "--heads", "-1"), "--heads takes whole numbers of at least 1"),
    (("run", "--dtypes", "float31"), "dtype must be one of"),
    (("run", "--device", "tpu"), "device must be one of"),
    (("run", "--seconds", "0"), "--seconds must be above 0"),
    (("run", "--experiments", "nope"), "no experiment is called 'nope'"),
    (("run", "--baseline", "naive_loop", "--backends", "torch_eager"), "baseline must be one of"),
    (("run", "--plan", "missing.toml"), "missing.toml cannot be read: No such file"),
    (("run", "--implementations", "missing"), "--implementations must name a folder"),
    (("run", "--out", "file"), "is a file; give another with --out"),
    (("compare", "torch_sdpa"), "at least two contenders"),
    (("compare", "torch_sdpa[x=1]", "torch_eager"), "unknown setting 'x'"),
    (("compare", "torch_sdpa", "torch_eager", "--length", "-5"), "at least 1, got -5"),
    (("compare", "torch_sdpa", "torch_eager", "--length", "x"), "--length"),
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
    assert split_sizes("--lengths", "1, 2,3") == [1, 2, 3]
