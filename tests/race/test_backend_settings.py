"""Settings that a backend file declares: read without importing it, handed to it once, refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_workers import QUICK, SMALL

import attnlab
from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import load, settings_of
from attnlab.race.conductor import Conductor
from attnlab.workload.result import Outcome

#: adds its setting to every output, so that it can be seen from outside
SOURCE = '''"""Attention, and a number on top."""
from attnlab.implementations.numpy_vectorized import attend as right

SETTINGS = {"more": ("0", "1", "2"), "format": ("own", "half")}
LIBRARY = "numpy"
_more = None


def configure(*, more, format):
    global _more, KERNEL
    if more == "2":
        raise ValueError("2 is not to be had\\nhere")
    _more, KERNEL = float(more), f"more {more}"
    return "float16" if format == "half" else None


def attend(query, key, value, *, causal, scale):
    return right(query, key, value, causal=causal, scale=scale) + query.dtype.type(_more)


def declines(workload):
    return "causal" if workload.causal else None
'''
ONES = np.ones((1, 1, 2, 4), np.float32)


def written(folder: Path, source: str = SOURCE) -> list[str]:
    """The folder of a backend `mine`."""
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return [str(folder)]


def test_they_are_read_without_importing_the_file(tmp_path: Path) -> None:
    folders = written(tmp_path, "import no_such_module\n" + SOURCE)
    assert settings_of("mine", folders) == {"more": ("0", "1", "2"), "format": ("own", "half")}
    with pytest.raises(ValueError, match="no backend is called 'yours'"):
        settings_of("yours", folders)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("SETTINGS = dict(a=1)", {}, r"mine.py: SETTINGS must be written out as \{"),
        ("SETTINGS = {'A': ('1',)}", {}, "names of small letters"),
        ("SETTINGS = {'a': ('1',)}", {}, "mine: a backend file with SETTINGS must define configure"),
        ("SETTINGS = {'a': ('1',)}", {"b": "1"}, "mine has no setting 'b'; its own are a=1$"),
        ("SETTINGS = {'a': ('1', '2')}", {"a": "3"}, "mine: a must be 1 or 2, got '3'"),
        ("SETTINGS = {'a': ('1',)}\ndef configure(a): return 'int8'", {}, "must compute in one of .*'int8'"),
        (
            "COMPUTES_IN = 'half'",
            {},
            "must compute in one of float16, bfloat16, float32, float64, got 'half'",
        ),
        ("def attend(:\nSETTINGS = 3", {}, "fails on import: SyntaxError"),
    ],
)
def test_what_is_wrong_with_them_is_one_line(
    tmp_path: Path, source: str, given: dict[str, str], message: str
) -> None:
    plain = "LIBRARY = 'numpy'\ndef attend(query, key, value): ...\n"
    with pytest.raises(ValueError, match=message) as refusal:
        load("mine", written(tmp_path, f"{source}\n{plain}"), given)
    assert "\n" not in str(refusal.value)


def test_a_contender_whose_setting_is_refused_is_an_outcome_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    contenders = parse_all(["mine[more=2]", "mine", "mine[more=1]", "mine[format=half]"])
    with Conductor(contenders, folders=written(tmp_path), limits=QUICK, memory=False) as conductor:
        refused, right, wrong, half = conductor.race(SMALL)
    assert refused.outcome is Outcome.UNAVAILABLE
    assert refused.reason == "mine refuses more=2, format=own: 2 is not to be had here"
    assert right.outcome is Outcome.MEASURED, right.reason
    assert (half.outcome, half.computes_in) == (Outcome.MEASURED, "float16"), half.reason
    assert wrong.outcome is Outcome.WRONG


def test_attend_takes_the_backends_own_settings_and_no_others(tmp_path: Path) -> None:
    folders = written(tmp_path)
    plain, one = (
        attnlab.attend(name, ONES, ONES, ONES, folders=folders) for name in ("mine", "mine[more=1]")
    )
    np.testing.assert_array_equal(one, plain + 1)
    with pytest.raises(ValueError, match=r"mine\[threads=1\]: it is computed in this process"):
        attnlab.attend("mine[threads=1]", ONES, ONES, ONES, folders=folders)
    with pytest.raises(ValueError, match="mine has no setting 'les'"):
        attnlab.attend("mine[les=1]", ONES, ONES, ONES, folders=folders)
