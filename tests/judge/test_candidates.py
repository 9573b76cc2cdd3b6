"""The form of a candidate's file is recognised, and bad input is reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.judge.candidates import MOST_BYTES, read_candidate
from attnlab.judge.judging import Judge, forbidden
from attnlab.judge.problems import judged
from attnlab.judge.score import escaped
from attnlab.workload.workload import Workload

BACKEND = 'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale): ...\n'
FUNCTION = "import numpy\ndef _part(q, k, v): ...\ndef mine(q, k, v, *, scale=None): ...\n"
MODEL = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, q, k, v): ...\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (BACKEND, ("backend", "attend", "numpy")),
        (FUNCTION, ("function", "mine", "numpy")),
        ("import torch\n" + FUNCTION, ("function", "mine", "torch")),
        (
            "try:\n    import triton\nexcept ImportError:\n    pass\n" + FUNCTION,
            ("function", "mine", "numpy"),
        ),
        ("import triton\n" + FUNCTION, ("function", "mine", "torch")),
        (MODEL, ("ModelNew", "ModelNew", "torch")),
    ],
)
def test_each_form_is_recognised_without_running_it(source, found, tmp_path) -> None:
    file = tmp_path / "one.py"
    file.write_text(source + "raise SystemExit('it must not be run')\n")
    one = read_candidate(file)
    assert (one.form, one.entry, one.library) == found


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"def f(q, k, v", "expected Python, got SyntaxError"),
        (b"\xff\xfe", "expected Python, got UnicodeDecodeError"),
        (b"x = 1", "got none of them"),
        (b"def f(q, k, v): ...\ndef g(q, k, v): ...", "got f, g"),
        ((BACKEND + MODEL).encode(), "keep one form"),
        (b'LIBRARY = "cupy"\ndef attend(q, k, v): ...', "expected LIBRARY to be one of"),
        (b"#" * (MOST_BYTES + 1), "more than the 100,000 bytes"),
        (b"(" * 10_000, "expected Python"),
    ],
)
def test_what_is_no_candidate_is_told_in_one_line(source: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_bytes(source)
    with pytest.raises(ValueError, match=said) as fault:
        read_candidate(file)
    assert str(file) in str(fault.value) and "\n" not in str(fault.value)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got a folder"):
        read_candidate(tmp_path)
    with pytest.raises(ValueError, match="got nothing"):
        read_candidate(tmp_path / "missing.py")
    with pytest.raises(ValueError, match="torch_sdpa"):
        Judge("torch_spda")


@pytest.mark.parametrize(
    "fields",
    [{"d_model": 64}, {"direction": "training"}, {"bias": "alibi"}, {"storage": "paged"}, {"sinks": True}],
)
def test_what_is_not_judged_is_told(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the judge takes"):
        judged(Workload(**fields))  # type: ignore[arg-type]


def test_a_forbidden_function_is_found_among_the_operators_that_ran() -> None:
    name = "torch.nn.functional.scaled_dot_product_attention"
    assert forbidden(["aten::view", "aten::_scaled_dot_product_flash_attention_for_cpu"], [name])
    assert forbidden(["aten::matmul"], ["torch.matmul"])
    assert not forbidden(["aten::bmm", "aten::_softmax", "aten::view"], [name])


def test_a_candidate_s_own_words_hold_no_control_characters() -> None:
    assert escaped("a\nb") == "a\\nb", "a reason has one line"
    said = escaped("\x1b[31mred\udc80\r\nline", "\n")
    assert said.isascii() and "\x1b" not in said and "\r" not in said and said.count("\n") == 1
