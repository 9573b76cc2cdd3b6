"""A contender is written ``backend[SETTING=value,...]``: the settings arrive, and slips are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.measuring.contender import Contender, parse_all

#: of OpenMP, and of the BLAS libraries that NumPy and PyTorch are built with
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def test_a_bare_name_has_no_settings() -> None:
    """Surrounding blanks are not part of it."""
    assert Contender.parse(" numpy_blocked ") == Contender("numpy_blocked", "numpy_blocked")
    assert Contender.parse("a").environment({"HOME": "/"})["HOME"] == "/"


def test_variables_and_threads_are_taken_apart() -> None:
    """A value may hold = and anything but a comma."""
    one = Contender.parse("torch_sdpa[threads=2, GLIBC_TUNABLES=glibc.malloc.trim_threshold=1:b=[2],_X1=a b]")
    assert one.backend == "torch_sdpa"
    assert one.threads == 2
    assert one.variables == (("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1:b=[2]"), ("_X1", "a b"))


def test_threads_set_every_librarys_variable_and_an_explicit_one_wins() -> None:
    """Libraries read them once, on import, each its own."""
    environment = Contender.parse("a[threads=3]").environment({"MKL_NUM_THREADS": "9"})
    assert {name: environment[name] for name in THREADS} == dict.fromkeys(THREADS, "3")
    assert Contender.parse("a[threads=3,MKL_NUM_THREADS=1]").environment({})["MKL_NUM_THREADS"] == "1"


def test_every_worker_keeps_its_heap() -> None:
    """Whatever else it is given: no array up to a GiB is mapped for itself, and no top is trimmed below 4."""
    kept = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
    assert Contender.parse("a").environment({}) == kept
    assert Contender.parse("a[X=1]").environment({"HOME": "/"}) == {**kept, "HOME": "/", "X": "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"),
        ("LD_PRELOAD", "x.so"),
        ("MALLOC_ARENA_MAX", "1"),
        ("MALLOC_TRIM_THRESHOLD_", "65536"),
    ],
)
def test_an_allocator_that_somebody_chose_replaces_the_kept_heap(name: str, value: str) -> None:
    """The contender itself or the caller: then all of that choice is theirs."""
    assert Contender.parse(f"a[{name}={value}]").environment({}) == {name: value}
    assert Contender.parse("a").environment({name: value}) == {name: value}


def test_a_contenders_own_setting_wins_over_the_callers() -> None:
    """Of an allocator and of anything else; the caller's environment itself is left as it is."""
    inherited = {"X": "1", "MALLOC_ARENA_MAX": "1"}
    environment = Contender.parse("a[X=2,MALLOC_ARENA_MAX=2]").environment(inherited)
    assert environment == {"X": "2", "MALLOC_ARENA_MAX": "2"}
    assert inherited == {"X": "1", "MALLOC_ARENA_MAX": "1"}


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
        ("a[lower=1]", "unknown setting 'lower'; settings are threads and environment variables in capitals"),
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
