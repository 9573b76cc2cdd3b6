"""A contender is written ``backend[SETTING=value,...]``: the settings arrive, and slips are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.backend.contender import Contender, parse_all

#: of OpenMP, and of the BLAS libraries that NumPy and PyTorch are built with
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def test_variables_and_threads_are_taken_apart() -> None:
    """A value may hold = and anything but a comma."""
    one = Contender.parse("torch_sdpa[threads=2, GLIBC_TUNABLES=glibc.malloc.trim_threshold=1:b=[2],_X1=a b]")
    assert one.backend == "torch_sdpa"
    assert one.threads == 2
    assert one.variables == (("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1:b=[2]"), ("_X1", "a b"))


def test_a_setting_is_held_against_the_backends_file() -> None:
    """Which is not imported for it: OpenVINO need not be there."""
    Contender.parse("openvino[precision=bf16]").require()
    Contender.parse("torch_sdpa[threads=1,X=1]").require()
    for text, message in {
        "torch_sdpa[lower=1]": "torch_sdpa has no setting 'lower'; it has none of its own; settings of all contenders "
        "are threads, pages, slowed",
        "openvino[precison=f32]": r"openvino has no setting 'precison'; its own are precision=f32\|bf16\|f16; settings",
        "openvino[precision=f8]": "openvino: precision must be f32 or bf16 or f16, got 'f8'$",
        "nobody[precision=f8]": "no backend is called 'nobody'",
    }.items():
        with pytest.raises(ValueError, match=message):
            Contender.parse(text).require()


def test_threads_set_every_librarys_variable_and_an_explicit_one_wins() -> None:
    """Libraries read them once, on import, each its own."""
    environment = Contender.parse("a[threads=3]").environment({"MKL_NUM_THREADS": "9"})
    assert {name: environment[name] for name in THREADS} == dict.fromkeys(THREADS, "3")
    assert Contender.parse("a[threads=3,MKL_NUM_THREADS=1]").environment({})["MKL_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a contender is written backend or"),
        ("2fast", "a contender is written backend or"),
        ("a b", "a contender is written backend or"),
        ("a[", "a contender is written backend or"),
        ("a[X=1]b", "a contender is written backend or"),
        ("a#2", "a contender is written backend or"),
        ("a[]", "a setting is written NAME=value, got ''"),
        ("a[X]", "a setting is written NAME=value, got 'X'"),
        ("a[X=]", "a setting is written NAME=value"),
        ("a[=1]", "a setting is written NAME=value"),
        ("a[X=1,]", "a setting is written NAME=value, got ''"),
        ("a[X=1\0]", "a setting is written NAME=value"),
        ("a[threads=0]", "threads must be a whole number of at least 1, got '0'"),
        ("a[threads=two]", "got 'two'"),
        ("a[threads=-1]", "got '-1'"),
        ("a[threads=²]", "got '²'"),
        (
            "a[Mixed=1]",
            "'Mixed' is no setting; settings of all contenders are threads, pages, slowed, projection",
        ),
        ("a[pages=small]", "pages must be huge or default, got 'small'"),
        ("a[pages=Huge]", "got 'Huge'"),
        ("a[pages=]", "a setting is written NAME=value"),
        ("a[pages=huge,pages=default]", "pages is given twice"),
        ("a[slowed=-1]", "slowed must be a percentage from 0 to 1000, got '-1'"),
        ("a[slowed=1001]", "got '1001'"),
        ("a[slowed=nan]", "got 'nan'"),
        ("a[slowed=inf]", "got 'inf'"),
        ("a[slowed=%]", "got '%'"),
        ("a[slowed=3%%]", "got '3%%'"),
        ("a[slowed=much]", "got 'much'"),
        ("a[slowed=1,slowed=2]", "slowed is given twice"),
        ("a[X=1,X=2]", "X is given twice"),
        ("a[threads=1,threads=2]", "threads is given twice"),
    ],
)
def test_broken_notation_is_refused_with_the_mend(text: str, message: str) -> None:
    """What came, and how it is written."""
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


def test_second_entries_are_numbered() -> None:
    """By their whole text, so that one with settings is a first entry."""
    names = [one.name for one in parse_all(["a", "b", "a", "a[X=1]", "a", "a[X=1]"])]
    assert names == ["a", "b", "a#2", "a[X=1]", "a#3", "a[X=1]#2"]
    assert parse_all(["a[X=1]", "a[X=1]"])[1].variables == (("X", "1"),)


def test_at_least_one_contender_is_needed() -> None:
    """An empty race has no answer."""
    with pytest.raises(ValueError, match="at least one contender is needed"):
        parse_all([])
