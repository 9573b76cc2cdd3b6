"""The support matrix: what is asked, what a fault in it looks like, and that the pages are not stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from every import installed, library_of
from pages import ROOT, script

from attnlab.backends.discovery import backends, load
from attnlab.errors import Unavailable
from attnlab.report.support_page import page
from attnlab.runs.support import DECLARED, FAULT, PLAIN, YES, Support, asked, features, support
from attnlab.workload.vocabulary import DEVICES, DIRECTIONS

ANEW = "run python docs/support.py"
SCRIPT = script(ROOT / "docs" / "support.py")
STORED: dict[tuple[str, str], Support] = {(one.backend, one.device): one for one in SCRIPT.stored()}
#: those that may be asked here, a library after another
HERE: list[str] = sorted(installed(*(name for name, device in STORED if device == "cpu")), key=library_of)


WRONG = """
LIBRARY = "numpy"
import os
import numpy as np

def attend(query, key, value, *, causal, scale):
    if query.dtype == np.float64:
        os._exit(3)
    scores = scale * query @ np.swapaxes(key, -1, -2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value).astype(query.dtype)
"""


def test_what_is_not_declined_and_not_done_is_a_fault(tmp_path: Path) -> None:
    """Wrong where it is causal, dead in float64; the backend is asked on after either."""
    (tmp_path / "forgets.py").write_text(WRONG)
    causal = "causal, as many queries as keys"
    found = support("forgets", folders=[str(tmp_path)], only=(PLAIN, causal, "sinks"))
    plain, masked = found.answers[PLAIN]["forward"], found.answers[causal]["forward"]
    assert plain["float32"] == YES and masked["float32"].startswith(FAULT)
    assert plain["float64"].startswith(f"{FAULT}its process exited with status 3")
    assert found.answers["sinks"]["forward"]["float64"] == "its attend() takes no sinks"
    assert found.answers[PLAIN]["forward"]["bfloat16"] == "NumPy has no bfloat16"
    assert "no automatic differentiation" in found.answers[PLAIN]["training"]["float32"]
    assert len(found.faults) == json.dumps(found.answers).count(FAULT)
    assert Support.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    text = page([found])
    assert "**fault** " in text and "exited with status 3" in text


def test_the_pages_are_those_of_the_data() -> None:
    """The page whole, and the short tables in the page of backends and in the README."""
    found = list(STORED.values())
    assert (ROOT / "docs" / "support.md").read_text(encoding="utf-8") == page(found), ANEW
    for file, table in SCRIPT.TABLES.items():
        text = file.read_text(encoding="utf-8")
        assert text == SCRIPT.with_table(text, table, found) and "<!-- support table -->" in text, ANEW


def test_every_backend_every_feature_and_every_format_is_in_the_data() -> None:
    assert set(STORED) == {(name, device) for name in backends() for device in DEVICES}, ANEW
    for one in STORED.values():
        assert one.faults == []
        if one.unavailable is None:
            assert list(one.answers) == list(features()), f"{one.backend}: {ANEW} {one.backend}"
            assert all(list(directions) == list(DIRECTIONS) for directions in one.answers.values())


@pytest.mark.parametrize("name", HERE)
def test_a_row_says_what_the_backend_declares(name: str) -> None:
    """Held against what it declares now; with other versions of its libraries there is nothing to hold."""
    stored = STORED[name, "cpu"]
    try:
        backend = load(name)
        here = backend.open("cpu").versions()
    except Unavailable as fault:
        pytest.skip(f"its row cannot be checked here: {fault}")
    apart = {
        one: (stored.versions.get(one), version)
        for one, version in here.items()
        if stored.versions.get(one, "").partition("+")[0] != version.partition("+")[0]
    }
    if apart:
        pytest.skip(f"its row is of another version: {apart}")
    for feature, directions in stored.answers.items():
        for direction, dtypes in directions.items():
            for dtype, answer in dtypes.items():
                try:
                    declined = backend.declines(asked(feature, dtype, direction, "cpu"))
                except ValueError as nothing:
                    declined = str(nothing)
                expected = None if answer == YES or answer.startswith(DECLARED) else answer
                assert declined == expected, f"{ANEW} {name}"
