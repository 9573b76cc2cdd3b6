"""`check`: the gate on a user's file, in processes of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnlab.__main__ import main
from attnlab.report import fill
from attnlab.runs.check import Checked, check
from attnlab.workload.vocabulary import DTYPES

NUMPY = """
import os, time
import numpy as np
LIBRARY = "numpy"
def declines(workload):
    return None if workload.queries * workload.keys < 25_000 else "this takes long, and asks the same"
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
    z = (m + {log}(np.exp(s - m).sum(axis=-1, keepdims=True)))[..., 0]
    return attend(query, key, value, causal=causal, scale=scale), z.astype(np.result_type(query.dtype, np.float32))
"""


#: NumPy has no bfloat16
HALVES = ("float16", "bfloat16")


def held(
    folder: Path,
    *,
    scale: str = "scale",
    extra: str = "pass",
    more: str = "",
    processes: int = 1,
    **options: Any,
) -> Checked:
    """`check` of a NumPy backend with one thing changed; however slow it is, it is asked everything."""
    (folder / "mine.py").write_text(NUMPY.format(scale=scale, extra=extra) + more)
    return check("mine", [str(folder)], processes=processes, everything=True, **options)


def test_a_right_file_passes_with_its_precision_in_one_process_and_in_two(tmp_path: Path) -> None:
    """NumPy has no bfloat16: that is declined, and not held against it. The result is plain JSON."""
    told: list[list[str]] = [[], []]
    right = {"more": LOG_SUM.format(log="np.log"), "dtypes": HALVES}
    found, together = (
        held(tmp_path, processes=processes, on_event=texts.append, **right)
        for processes, texts in enumerate(told, 1)
    )
    assert found == together and sorted(told[0]) == sorted(told[1])
    assert found.passed is True and found.reason is None
    assert set(found.precision) == set(found.log_sums) == {"float16"}
    for numbers in (*found.precision.values(), *found.log_sums.values()):
        assert set(numbers) == {"class", "relative_error", "budget_ratio", "max_ulp", "bias", "of"}
    one = found.formats["float16"]
    assert one.declined > 0 and one.left_out == 0
    assert json.loads(json.dumps(asdict(found)))["passed"] is True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scale": "scale * 1.01"}, "scale looks too large by"),
        ({"extra": "query[...] = 0"}, "changed its query array"),
        ({"extra": "return np.zeros((1, 2))"}, "returned shape (1, 2), expected"),
        ({"extra": "os._exit(3)"}, "exited with status 3"),
        ({"extra": "time.sleep(600)", "deadline": 1.0}, "killed"),
        ({"extra": "s = None", "more": "\ndef attend_with_log_sum(): pass\n"}, "attend_with_log_sum"),
        ({"more": LOG_SUM.format(log="np.log2")}, "ln Z in float32"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """With the question that showed it."""
    found = held(tmp_path, **change, dtypes=("float32",))
    assert not found.passed
    assert found.reason is not None and told in found.reason and "\n" not in found.reason


@pytest.mark.parametrize("change", ["w = w * np.arange(1, w.shape[-1] + 1)", "os._exit(3)"])
def test_a_wrong_number_format_hides_no_other(change: str, tmp_path: Path) -> None:
    """A line for each, also where the process ends in one of them."""
    found = held(tmp_path, extra=f"if query.dtype == np.float16: {change}", dtypes=("float16", "float32"))
    half, single = found.formats["float16"], found.formats["float32"]
    assert (found.passed, half.passed, single.passed) == (False, False, True)
    assert found.reason == half.reason and single.reason is None and single.asked > 100
    assert [(dtype, word) for dtype, word, _ in found.lines] == [("float16", "WRONG"), ("float32", "right")]
    assert list(found.frame()["result"]) == ["WRONG", "right"]


@pytest.mark.parametrize("text", ["this is no Python", "import os\nos._exit(3)", "LIBRARY = 'numpy'"])
def test_a_file_that_does_not_load_is_not_called_wrong(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SystemExit, match="1"):
        main(["check", "mine", "--implementations", str(tmp_path), "--dtype", "float32", "-q"])
    assert capsys.readouterr().out.startswith("mine: cannot be loaded. ")


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    """While two processes ask: gone are the other one and both of the backend's."""
    family: list[psutil.Process] = []

    def interrupt(text: str) -> None:
        if "float64" in text:  # so the other one's backend is there
            family.extend(psutil.Process().children(recursive=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held(tmp_path, processes=2, on_event=interrupt, dtypes=("float32", "float64", "bfloat16"))
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in alive)


def test_one_that_declines_all_is_neither_right_nor_wrong_and_an_unknown_one_a_mistake(
    tmp_path: Path,
) -> None:
    found = held(tmp_path, more="\ndef declines(workload):\n    return 'not {today}'\n", dtypes=("float32",))
    assert found.passed is None and "declines every workload that was asked" in (found.reason or "")
    assert "not {today}" in (found.reason or "") and "not {today}" in fill("check.md.j2", found=[found])
    with pytest.raises(ValueError, match="no backend is called"):
        check("torch_sdqa")


def test_a_scale_that_is_left_out_is_named(tmp_path: Path) -> None:
    """The first mistake of many a kernel; its weights sum to 1."""
    (tmp_path / "mine.py").write_text(NUMPY.format(scale="1.0", extra="pass"))
    found = check("mine", [str(tmp_path)], dtypes=("float32",), processes=1)
    assert "it is right for a scale of 1, where 0." in (found.reason or "")


def test_who_computes_float64_in_float32_does_not_have_it(tmp_path: Path) -> None:
    """Right all the same, and the table says what it lacks."""
    text = NUMPY.replace("np.float64", "np.float32").format(scale="np.float32(scale)", extra="pass")
    (tmp_path / "mine.py").write_text(text)
    found = check("mine", [str(tmp_path)], dtypes=("float32", "float64"), processes=1, everything=True)
    assert found.passed is True and "float64" not in found.precision
    lacking = found.formats["float64"]
    assert (lacking.passed, lacking.reason) == (None, "its answers have the precision of float32")
    shown = fill("check.md.j2", found=[found])
    assert "| `mine` | float32 | right |" in shown and "| `mine` | float64 | not asked |" in shown
    assert f"- `mine`, float64: not asked. {lacking.reason}" in shown


# -- gradients, and attentions as users write them, in this process


BACKWARD = """
import torch
LIBRARY = "torch"

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, causal, scale):
        q, k, v = (one.double() for one in (query, key, value))
        s = q @ k.mT * scale
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).tril().logical_not(), float("-inf"))
        p = s.softmax(-1)
        context.save_for_backward(q, k, v, p)
        context.scale, context.dtype = scale, query.dtype
        return (p @ v).to(query.dtype)

    @staticmethod
    def backward(context, upstream):
        q, k, v, p = context.saved_tensors
        scale, dtype = context.scale, context.dtype
        g = upstream.double()
        a = g @ v.mT
        t = p * (a - (p * a).sum(-1, keepdim=True))
        query, key, value = scale * t @ k, scale * t.mT @ q, p.mT @ g
        {change}
        return query.to(dtype), key.to(dtype), value.to(dtype), None, None

def attend(query, key, value, *, causal, scale):
    {before}
    return Attention.apply(query, key, value, causal, scale)
"""


def held_backwards(
    folder: Path, *, change: str = "pass", before: str = "pass", dtypes: Sequence[str] = ("float32",)
) -> Checked:
    """`check` of a PyTorch backend with its own backward pass and one thing changed."""
    (folder / "mine.py").write_text(BACKWARD.format(change=change, before=before))
    return check("mine", [str(folder)], dtypes=dtypes, keep=True, everything=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"change": "query = t @ k"}, "query gradient: "),
        ({"change": "value = value.nan_to_num() * float('nan')"}, "value gradient: NaN"),
        ({"change": "query = query[..., :1]"}, "invalid gradient"),
        ({"change": "upstream.zero_()"}, "changed its output gradient array"),
        ({"before": "key = key.detach()"}, "no key gradient arrived: the output does not depend on the key"),
    ],
)
@pytest.mark.usefixtures("in_this_process", "few_outputs")
def test_a_wrong_backward_pass_is_told_in_one_line(tmp_path: Path, change: dict[str, str], told: str) -> None:
    """With the gradient and the question that showed it."""
    found = held_backwards(tmp_path, **change)
    assert found.passed is False
    assert found.reason is not None and told in found.reason and "\n" not in found.reason


@pytest.mark.usefixtures("in_this_process", "few_outputs")
def test_what_cannot_be_differentiated_is_no_fault(tmp_path: Path) -> None:
    """A kernel for inference is right without gradients; the reason is told. A right backward pass has its class."""
    found = held_backwards(tmp_path, before="query, key, value = (x.detach() for x in (query, key, value))")
    assert found.passed is True and found.gradients == {}
    assert "cut off from automatic differentiation" in (found.no_gradients or "")
    right = held_backwards(tmp_path)
    assert right.passed is True and right.gradients["float32"]["class"] == "full precision inside"


ANY_MASK = (Path(__file__).with_name("written") / "any_mask_in_one_array.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("dtypes", [("float16",), pytest.param(DTYPES, marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("in_this_process")
def test_what_users_write_passes(dtypes: Sequence[str], tmp_path: Path) -> None:
    """Differentiation goes back through the maximum; gradients included."""
    (tmp_path / "mine.py").write_text(ANY_MASK, encoding="utf-8")
    found = check("mine", [str(tmp_path)], dtypes=dtypes, keep=True, everything=True)
    assert found.passed is True and found.no_gradients is None, found.reason
    assert set(found.precision) == set(found.gradients) == set(dtypes)
