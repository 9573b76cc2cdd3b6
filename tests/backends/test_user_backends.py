"""A user's file becomes a backend, or is refused in one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import backends, load
from attnlab.errors import Unavailable
from attnlab.workload.workload import Workload

SMALL = Workload(heads=2, queries=3, keys=5, head_dim=4)


def write(folder: Path, source: str = "", name: str = "mine") -> Path:
    """Write a user's file; returns its folder."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return folder


def test_a_file_in_a_folder_is_found_by_its_name(tmp_path: Path) -> None:
    """Sorted among the backends of attnlab. Names that begin with _ or a dot, and other files, are left out."""
    write(tmp_path)
    write(tmp_path, name="_private")
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".#mine.py").symlink_to("user@host.1234:99")  # Emacs makes such a link while it edits
    (tmp_path / "a-folder.py").mkdir()
    assert backends([tmp_path]) == sorted([*backends(), "mine"])
    assert backends([str(tmp_path), tmp_path]) == backends([tmp_path]), "a folder may be named twice"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nraise RuntimeError('no\\nluck')", r"fails on import: RuntimeError: no luck \(line 2\)"),
        ("import sys\nsys.exit(3)", r"fails on import: SystemExit: 3 \(line 2\)"),
        ("LIBRARY = 'numpy'", r"mine: a backend file must define attend\(query, key, value"),
        ("def attend(q, k, v): ...", r'mine: LIBRARY must be .*"numpy" or .*"torch" or .*got None'),
        ("LIBRARY = 'numpy'\nattend = max", r"wrap it in a function: def attend\("),
        ("LIBRARY = 'numpy'\ndef attend(q, k, v, *, dropout): ...", "needs 'dropout', which is no keyword"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line(tmp_path: Path, source: str, message: str) -> None:
    """The message has the name of the file or backend, what is wrong and, if known, the line number."""
    with pytest.raises(ValueError, match=message) as refusal:
        load("mine", [write(tmp_path, source)])
    assert "\n" not in str(refusal.value)
    assert "mine" in str(refusal.value)


def test_a_missing_library_is_unavailable_by_name(tmp_path: Path) -> None:
    """It is not reported as an error of the user."""
    with pytest.raises(Unavailable, match=r"mine needs nosuchlibrary, which is not installed"):
        load("mine", [write(tmp_path, "import nosuchlibrary.deep")])


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    """It may be taken by a backend of attnlab or by a file in another folder. Bad names and folders are refused too."""
    with pytest.raises(ValueError, match=r"numpy_vectorized.py has the name of another backend"):
        backends([write(tmp_path, name="numpy_vectorized")])
    one, other, two = tmp_path / "one", tmp_path / "other", tmp_path / "two"
    for folder in (one, other, two):
        folder.mkdir()
        write(folder)
    with pytest.raises(ValueError, match="has the name of another backend, mine; rename the file"):
        backends([one, other])
    with pytest.raises(ValueError, match=r"must be letters, digits and _; rename the file"):
        backends([write(tmp_path / "two", name="2fast")])
    with pytest.raises(ValueError, match=r"must name a folder that is there, got .*nowhere"):
        backends([tmp_path / "nowhere"])


# -- what it takes, what it declines -------------------------------------------------------------------


def of(function: Any, **fields: Any) -> Backend:
    """A backend made from a function, without a file."""
    return Backend(name="mine", library="numpy", attend=function, **fields)


@pytest.mark.parametrize(
    ("signature", "options"),
    [
        ("q, k, v", set()),
        ("q, k, v, causal=False", {"causal"}),
        ("q, k, v, *, mask=None, **others", {"causal", "scale", "mask"}),
        ("q, k, v, *, causal, mask, softcap, enable_gqa", {"causal", "mask", "softcap", "enable_gqa"}),
    ],
)
def test_options_are_read_off_the_signature(tmp_path: Path, signature: str, options: set[str]) -> None:
    """So a function of three arrays is already a backend."""
    source = f"LIBRARY = 'numpy'\ndef attend({signature}): ..."
    assert load("mine", [write(tmp_path, source)]).options == options


@pytest.mark.parametrize(
    ("asked", "taken", "reason"),
    [
        ({"causal": True}, set(), "causal"),
        ({"causal": "bottom_right"}, {"causal"}, "causal_bottom_right"),
        ({"mask": "window(1,1) & window(2,2)"}, {"window"}, "no mask"),
        ({"kv_heads": 1}, {"mask"}, "no enable_gqa"),
        ({"direction": "backward"}, {"mask"}, "no automatic differentiation"),
    ],
)
def test_each_feature_is_declined_by_name(asked: dict[str, Any], taken: set[str], reason: str) -> None:
    """It is declined if the backend lacks its keyword; a keyword for another causal alignment does not count."""
    backend = of(lambda q, k, v: v, options=frozenset(taken | {"scale"}))
    refusal = backend.declines(SMALL.with_(**asked))
    assert refusal is not None and reason in refusal.reason


@pytest.mark.parametrize(
    ("asked", "taken", "given"),
    [
        ({"causal": True}, {"causal", "mask"}, {"causal": True, "mask": None}),
        ({"causal": True, "keys": 3}, {"causal_bottom_right"}, {"causal_bottom_right": True}),
        ({"causal": True, "window": (1, 0)}, {"causal", "window"}, {"causal": True, "window": (1, 0)}),
        ({"bias": "alibi"}, {"alibi_slopes"}, {"alibi_slopes": (0.0625, 0.00390625)}),
        ({"kv_heads": 1}, {"enable_gqa"}, {"enable_gqa": True}),
        ({}, {"causal", "bias", "enable_gqa"}, {"causal": False, "bias": None, "enable_gqa": False}),
    ],
)
def test_a_keyword_is_given_what_it_says(asked, taken, given) -> None:
    """A keyword for a feature that the workload does not use gets False or None."""
    seen: dict[str, Any] = {}
    of(lambda q, k, v, **rest: seen.update(rest), options=frozenset(taken)).bind(SMALL.with_(**asked))()
    assert seen == given


def test_rows_that_see_no_key_are_zeroed_for_who_does_not_say_that_it_does() -> None:
    """This holds for the forward pass. The gradients of such rows are not known, so they are declined."""
    workload = SMALL.with_(batch=2, key_lengths=(5, 0))
    for empty_rows, expected in ((None, 0.0), ("zeros", 7.0), ({"cuda": "zeros"}, 0.0)):
        backend = of(
            lambda q, k, v, *, mask: np.full_like(q, 7), options=frozenset({"mask"}), empty_rows=empty_rows
        )
        output = backend.bind(workload)()
        assert (output[0] == 7).all() and (output[1] == expected).all()
    other = Backend(name="mine", library="torch", attend=max, options=frozenset({"mask", "scale"}))
    assert "sees no key" in str(other.declines(workload.with_(direction="training")))


# -- what it returns ------------------------------------------------------------------------------------

RIGHT = np.zeros((1, 2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (RIGHT[0], r"returned shape \(2, 3, 4\), expected \(1, 2, 3, 4\)"),
        (None, "returned a NoneType, expected a numpy.ndarray"),
        (torch.from_numpy(RIGHT), r"returned a torch.Tensor, expected a numpy.ndarray, as its LIBRARY"),
    ],
)
def test_an_output_that_is_not_the_workloads_is_refused(output: Any, message: str) -> None:
    """The message says what was returned and what was expected."""
    with pytest.raises(ValueError, match=f"mine {message}"):
        of(None).named(SMALL, output)
