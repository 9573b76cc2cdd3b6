"""`check` asks a user's file its questions, in a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnlab.__main__ import main
from attnlab.correctness.check import Checked, check

NUMPY = """
import os, time
import numpy as np
LIBRARY = "numpy"
def scores(query, key, causal, scale):
    s = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) * {scale}
    return np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s
def attend(query, key, value, *, causal, scale):
    s = scores(query, key, causal, scale)
    w = np.exp(s - s.max(axis=-1, keepdims=True))
    {extra}
    return (w / w.sum(axis=-1, keepdims=True) @ value.astype(np.float64)).astype(query.dtype)
"""
LOG_SUM = """
def attend_with_log_sum(query, key, value, *, causal, scale):
    s = scores(query, key, causal, scale)
    m = s.max(axis=-1, keepdims=True)
    z = (m + np.log(np.exp(s - m).sum(axis=-1, keepdims=True)))[..., 0]
    return attend(query, key, value, causal=causal, scale=scale), z.astype(np.result_type(query.dtype, np.float32))
"""


#: declines large workloads, so that a check is short
SMALL_ALONE = """
def declines(workload):
    large = workload.direction == "forward" and workload.queries * workload.keys > 700
    return "large ones take long" if large else None
"""


def held(
    folder: Path, *, scale: str = "scale", extra: str = "pass", more: str = "", **options: Any
) -> Checked:
    """`check` of a NumPy backend with one thing changed. The right answers are kept for the next call."""
    (folder / "mine.py").write_text(NUMPY.format(scale=scale, extra=extra) + more)
    return check("mine", [str(folder)], **{"dtypes": ("float16",), "keep": True, **options})


def test_a_right_file_passes_with_its_precision(tmp_path: Path) -> None:
    """NumPy has no bfloat16: it is declined, which is no failure. The result can be written as JSON."""
    told: list[str] = []
    found = held(
        tmp_path, on_event=told.append, invariance=True, more=LOG_SUM, dtypes=("float16", "bfloat16")
    )
    assert found.passed is True and found.reason is None
    assert set(found.precision) == set(found.log_sums) == {"float16"}
    for numbers in (*found.precision.values(), *found.log_sums.values()):
        assert set(numbers) == {"class", "relative_error", "budget_ratio", "max_ulp", "bias", "of"}
    one = found.formats["float16"]
    assert one.declined > 0 and one.left_out == 0 and len(told) >= one.asked > 50
    assert [(each.dtype, each.same["again"]) for each in found.invariance] == [("float16", True)]
    assert json.loads(json.dumps(asdict(found)))["passed"] is True
    assert list(found.frame()["result"]) == ["right", "not asked"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scale": "scale * 1.01"}, "scale looks too large by"),
        ({"scale": "1.0"}, "it is right for a scale of 1, where 0."),
        ({"extra": "query[...] = 0"}, "changed its query array"),
        ({"extra": "os._exit(3)"}, "exited with status 3"),
        ({"extra": "time.sleep(600)", "deadline": 1.0}, "killed"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """The line has the question that showed the fault."""
    found = held(tmp_path, dtypes=("float32",), **change)
    assert found.passed is False
    assert found.reason is not None and told in found.reason and "\n" not in found.reason


def test_a_wrong_number_format_hides_no_other(tmp_path: Path) -> None:
    """Each number format has its own line, also if the process ends in one of them."""
    ended = "if query.dtype == np.float32: os._exit(3)"
    found = held(tmp_path, extra=ended, dtypes=("float32", "float16"), more=SMALL_ALONE)
    half, single = found.formats["float16"], found.formats["float32"]
    assert (found.passed, half.passed, single.passed) == (False, True, False)
    assert found.reason == single.reason and half.reason is None and half.asked > 10
    assert [(dtype, word) for dtype, word, _ in found.lines] == [("float32", "WRONG"), ("float16", "right")]


def test_a_file_that_does_not_load_is_not_called_wrong(tmp_path, capsys) -> None:
    for text in ("this is no Python", "import os\nos._exit(3)"):
        (tmp_path / "mine.py").write_text(text)
        with pytest.raises(SystemExit, match="1"):
            main(["check", "mine", "--implementations", str(tmp_path), "--dtype", "float32", "-q"])
        assert capsys.readouterr().out.startswith("mine: ")


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    family: list[psutil.Process] = []

    def interrupt(text: str) -> None:
        family.extend(psutil.Process().children(recursive=True))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held(tmp_path, on_event=interrupt)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert family and not alive


def test_declining_all_is_neither_right_nor_wrong_and_an_unknown_one_a_mistake(tmp_path: Path) -> None:
    found = held(tmp_path, more="\ndef declines(workload):\n    return 'not {today}'\n")
    assert found.passed is None and "not {today}" in (found.reason or "")
    with pytest.raises(ValueError, match="no backend is called"):
        check("torch_sdqa")


BACKWARD = """
import torch
LIBRARY = "torch"
def attend(query, key, value, *, causal, scale):
    q, k, v = ({leaf} for x in (query.double(), key.double(), value.double()))
    s = q @ k.mT * scale
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).tril().logical_not(), float("-inf"))
    return (s.softmax(-1) @ v).to(query.dtype)
"""


@pytest.mark.parametrize(("leaf", "told"), [("2 * x - x.detach()", " gradient: "), ("x.detach()", None)])
def test_a_backward_pass_is_judged_and_none_is_no_fault(tmp_path: Path, leaf: str, told: str | None) -> None:
    """Gradients of twice the right size fail. A kernel without gradients is right, and the reason is reported."""
    (tmp_path / "mine.py").write_text(BACKWARD.format(leaf=leaf) + SMALL_ALONE)
    found = check("mine", [str(tmp_path)], dtypes=("float16",), keep=True)
    assert found.passed is (told is None), found.reason
    if told:
        assert found.reason is not None and told in found.reason and "\n" not in found.reason
    else:
        assert found.gradients == {}
        assert "cut off from automatic differentiation" in (found.no_gradients or "")
