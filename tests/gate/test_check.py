"""`check`: the gate on a user's file, in a process of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.cli.tables import check_table
from attnlab.gate.questions import Question, questions
from attnlab.runs.check import _LEAD, Checked, _BlackBox, check

RIGHT = """
import numpy as np
LIBRARY = "numpy"
def attend(query, key, value, *, causal, scale):
    s = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) * {scale}
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    w = np.exp(s - s.max(axis=-1, keepdims=True))
    {extra}
    return (w / w.sum(axis=-1, keepdims=True) @ value.astype(np.float64)).astype(query.dtype)
"""


NUMBERS = {"class", "relative_error", "budget_ratio", "max_ulp", "bias", "of"}


def held(tmp_path: Path, *, scale: str = "scale", extra: str = "pass", **more: Any) -> Checked:
    """`check` of a NumPy backend with one thing changed."""
    (tmp_path / "mine.py").write_text(RIGHT.format(scale=scale, extra=extra))
    return check("mine", [str(tmp_path)], lanes=1, everything=True, **more)


def test_a_right_file_passes_with_its_precision(tmp_path: Path) -> None:
    """NumPy has no bfloat16: that is declined, and not held against it. The result is plain JSON."""
    found = held(tmp_path)
    assert found.passed is True and found.reason is None
    assert set(found.precision) == {"float32", "float64", "float16"}
    for numbers in found.precision.values():
        assert set(numbers) == NUMBERS
    assert found.declined > 0 and found.left_out == 0
    assert json.loads(json.dumps(asdict(found)))["passed"] is True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scale": "scale * 1.01"}, "scale looks too large by"),
        ({"extra": "query[...] = 0"}, "changed its query array"),
        ({"extra": "raise KeyError('lost')"}, "raised KeyError"),
        ({"extra": "return value"}, "shares memory with its value array"),
        ({"extra": "return np.zeros((1, 2))"}, "returned shape (1, 2), expected"),
        ({"extra": "return w"}, "returned"),
        ({"extra": "import os; os._exit(3)"}, "exited with status 3"),
        ({"extra": "import os; os.abort()"}, "killed by SIGABRT"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, change: dict[str, str], told: str) -> None:
    """With the question that showed it."""
    found = held(tmp_path, **change, dtypes=("float32",))
    assert found.passed is False
    assert found.reason is not None and told in found.reason and "\n" not in found.reason
    assert "normal" in found.reason


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    """A deadline a question; the reason names it."""
    found = held(tmp_path, extra="import time; time.sleep(600)", dtypes=("float32",), deadline=1.0)
    assert found.passed is False
    assert "killed" in (found.reason or "") and "normal" in (found.reason or "")


def test_one_that_declines_all_is_not_asked(tmp_path: Path) -> None:
    """`passed` is None: neither right nor wrong."""
    (tmp_path / "shy.py").write_text(
        RIGHT.format(scale="scale", extra="pass") + "\ndef declines(workload):\n    return 'not today'\n"
    )
    found = check("shy", [str(tmp_path)], dtypes=("float32", "float64"), lanes=1)
    assert found.passed is None and "declines" in (found.reason or "")


def test_who_computes_float64_in_float32_does_not_have_it(tmp_path: Path) -> None:
    """Right all the same, and the table says what it lacks."""
    text = RIGHT.replace("np.float64", "np.float32").format(scale="np.float32(scale)", extra="pass")
    (tmp_path / "mine.py").write_text(text)
    found = check("mine", [str(tmp_path)], dtypes=("float32", "float64"), lanes=1)
    assert found.passed is True and found.reason is None
    assert found.no_dtypes["float64"] == "its answers have the precision of float32"
    assert "float64" not in found.precision
    shown = [str(cell) for column in check_table([found]).columns for cell in column.cells]
    assert any("no float64: its answers have the precision of float32" in cell for cell in shown)


class NeverReady:
    """A worker whose answers are there when they are waited for."""

    def begin(self, op: str, **options: Any) -> Any:
        """The question's own size in zeros."""
        zeros = np.zeros(options["problem"].query.shape)
        return lambda: {"cpu_seconds": 0.0, "setup_seconds": 0.0, "results": {"output": zeros}}

    def answered(self) -> bool:
        """Never before."""
        return False


def worked_out(coming: Sequence[Question]) -> int:
    """How many right answers are there."""
    return sum("references" in vars(question) for question in coming)


def test_while_a_backend_works_some_of_the_next_answers_are_worked_out() -> None:
    """Some, not all: most questions may be too slow for it. What was passed over is not looked at again."""
    coming = [replace(question) for question in itertools.islice(questions("float32", 0), 3 * _LEAD)]
    asked = _BlackBox(NeverReady(), "cpu", iter(coming), iter(()))  # type: ignore[arg-type]
    asked(coming[0])
    assert worked_out(coming) == worked_out(coming[: 1 + _LEAD]) == 1 + _LEAD
    asked(coming[1])
    assert worked_out(coming) == 2 + _LEAD
    later = 2 * _LEAD
    asked(coming[later])
    assert worked_out(coming[2 + _LEAD : later]) == 0
    assert worked_out(coming[later:]) == len(coming[later:])
    again = replace(coming[0])  # as the last ones, which are asked after all others
    asked(again)
    assert worked_out([again]) == 1


def test_a_backend_that_has_answered_is_not_kept_waiting() -> None:
    """Only the answer to the question itself is worked out."""
    coming = [replace(question) for question in itertools.islice(questions("float32", 0), 4)]
    worker = NeverReady()
    worker.answered = lambda: True  # type: ignore[method-assign]
    _BlackBox(worker, "cpu", iter(coming), iter(()))(coming[0])  # type: ignore[arg-type]
    assert worked_out(coming) == 1


def test_the_table_says_where_too_little_was_asked() -> None:
    """More than a quarter left out is not plainly right, and the table says why; what was declined does not count."""
    found = [
        Checked("fast", True, None, asked=300, declined=500, left_out=100),
        Checked("slow", True, None, asked=299, left_out=100),
        Checked("wrong", False, "NaN", asked=1, left_out=100),
        Checked("compiled", True, None, asked=299, uncompiled=100),
    ]
    columns = {str(column.header): list(column.cells) for column in check_table(found).columns}
    assert columns["result"] == ["right", "right, as far as asked", "WRONG", "right, as far as asked"]
    assert columns["too slow"] == ["100", "100", "100", "0"]
    assert columns["not compiled for"] == ["0", "0", "0", "100"]


def test_an_unknown_name_is_a_mistake_of_the_caller() -> None:
    """ValueError, before any process starts."""
    with pytest.raises(ValueError, match="no backend is called"):
        check("torch_sdqa")


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
    tmp_path: Path, *, change: str = "pass", before: str = "pass", dtypes: Sequence[str] = ("float32",)
) -> Checked:
    """`check` of a PyTorch backend with its own backward pass and one thing changed."""
    (tmp_path / "mine.py").write_text(BACKWARD.format(change=change, before=before))
    return check("mine", [str(tmp_path)], dtypes=dtypes, keep=True)


def test_a_right_backward_pass_is_reported(tmp_path: Path) -> None:
    """With its precision, by dtype, beside that of the output."""
    found = held_backwards(tmp_path, dtypes=("float32", "bfloat16"))
    assert found.passed is True and found.reason is None and found.no_gradients is None
    assert set(found.gradients) == {"float32", "bfloat16"}
    for numbers in found.gradients.values():
        assert set(numbers) == NUMBERS
        assert numbers["class"] == "full precision inside"
    assert json.loads(json.dumps(asdict(found)))["gradients"].keys() == found.gradients.keys()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"change": "query = t @ k"}, "query gradient: "),
        ({"change": "query = 1.1 * query"}, "too large by 10 % on average: a factor is missing or wrong"),
        ({"change": "key = -key"}, "key gradient: "),
        ({"change": "value = value * 1.001"}, "value gradient: "),
        ({"change": "value = value.nan_to_num() * float('nan')"}, "value gradient: NaN"),
        ({"change": "query = query[..., :1]"}, "invalid gradient"),
        ({"change": "raise KeyError('lost')"}, "raised KeyError"),
        ({"change": "upstream.zero_()"}, "changed its output gradient array"),
        ({"change": "return None, key.to(dtype), value.to(dtype), None, None"}, "no query gradient arrived"),
        ({"before": "key = key.detach()"}, "no key gradient arrived: the output does not depend on the key"),
        ({"before": "value = value.detach().clone()"}, "no value gradient arrived"),
    ],
)
@pytest.mark.usefixtures("in_this_process", "few_outputs")
def test_a_wrong_backward_pass_is_told_in_one_line(tmp_path: Path, change: dict[str, str], told: str) -> None:
    """With the gradient and the question that showed it."""
    found = held_backwards(tmp_path, **change)
    assert found.passed is False
    assert found.reason is not None and told in found.reason and "\n" not in found.reason
    assert "normal" in found.reason


@pytest.mark.usefixtures("in_this_process", "few_outputs")
def test_what_cannot_be_differentiated_is_no_fault(tmp_path: Path) -> None:
    """A kernel for inference is right without gradients; the reason is told."""
    found = held_backwards(
        tmp_path, before="query, key, value = (one.detach() for one in (query, key, value))"
    )
    assert found.passed is True and found.reason is None
    assert found.gradients == {} and "cut off from automatic differentiation" in (found.no_gradients or "")
