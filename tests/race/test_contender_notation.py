"""A contender is written ``backend[SETTING=value,...]``: the settings are read, and mistakes are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.backends.contender import Contender, parse_all


def test_variables_and_threads_are_taken_apart_and_second_entries_numbered() -> None:
    """A value may contain = and anything except a comma. Repeated entries are numbered by their whole text."""
    names = [one.name for one in parse_all(["a", "b", "a", "a[X=1]", "a", "a[X=1]"])]
    assert names == ["a", "b", "a#2", "a[X=1]", "a#3", "a[X=1]#2"]
    one = Contender.parse("torch_sdpa[threads=2, GLIBC_TUNABLES=glibc.malloc.trim_threshold=1:b=[2],_X1=a b]")
    assert one.backend == "torch_sdpa"
    assert one.threads == 2
    assert one.variables == (("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1:b=[2]"), ("_X1", "a b"))


def test_a_setting_is_held_against_the_backends_file() -> None:
    """The file is not imported for it: OpenVINO need not be installed."""
    Contender.parse("openvino[precision=bf16]").require()
    for text, message in {
        "openvino[precison=f32]": r"openvino has no setting 'precison'; its own are precision=f32\|bf16\|f16; settings",
        "torch_sdpa[threds=1]": r"torch_sdpa has no setting 'threds'; it has none of its own; did you mean threads\?$",
        "openvino[precision=f8]": "openvino: precision must be f32 or bf16 or f16, got 'f8'$",
        "nobody[precision=f8]": "no backend is called 'nobody'",
    }.items():
        with pytest.raises(ValueError, match=message):
            Contender.parse(text).require()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a contender is written backend or"),
        ("a[X=]", "a setting is written NAME=value"),
        ("a[threads=0]", "threads must be a whole number from 1 to 4,096, got '0'"),
        ("a[Mixed=1]", "'Mixed' is no setting; settings of all contenders are threads, pages, slowed"),
        ("a[pages=small]", "pages must be huge or default, got 'small'"),
        ("a[slowed=-1]", "slowed must be a percentage from 0 to 1000, got '-1'"),
        ("a[X=1,X=2]", "X is given twice"),
    ],
)
def test_broken_notation_is_refused_with_the_mend(text: str, message: str) -> None:
    """The message says what was given and how to write it."""
    with pytest.raises(ValueError) as refusal:
        Contender.parse(text)
    assert message in str(refusal.value)


@given(st.text(max_size=20))
def test_any_text_is_a_contender_or_a_value_error(text: str) -> None:
    """Never another exception."""
    try:
        one = Contender.parse(text)
    except ValueError:
        return
    assert one.name == text.strip()
