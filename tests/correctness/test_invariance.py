"""Does a repeated call give the same bits? Dependence on batch, heads, queries or earlier calls is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.correctness.answering import Child
from attnlab.workload.result import GRADIENTS_AGAIN, SAME_BITS

#: in float64, row by row: no sum depends on other rows, unless `condition` is true
SOURCE = """
import numpy as np
LIBRARY = "numpy"
calls = 0
def attend(query, key, value, *, causal, scale):
    global calls
    calls += 1
    out = np.empty((*query.shape[:3], value.shape[3]))
    for at in np.ndindex(query.shape[:3]):
        k, v = (one[at[:2]].astype(np.float64) for one in (key, value))
        scores = (k * query[at].astype(np.float64)).sum(-1) * scale
        weights = np.exp(scores - scores.max())
        out[at] = (weights[:, None] * v).sum(0) / weights.sum()
    found = out.astype(query.dtype)
    if {condition}:
        found[0, 0, 0, 0] = np.nextafter(found[0, 0, 0, 0], query.dtype.type(9))
    return found
"""


@pytest.mark.parametrize(
    ("condition", "differ"),
    [
        ("False", set()),
        # the whole is computed in the first call
        ("calls % 2", {"again", "batch alone", "a chunk of queries"}),
        ("query.shape[0] == 1", {"batch alone"}),
        ("query.shape[1] == 1", {"head alone"}),
        ("1 < query.shape[2] < 40", {"a chunk of queries"}),
        ("query.shape[2] == 1", {"one query alone"}),
    ],
)
def test_what_the_bits_depend_on_is_found(tmp_path: Path, condition: str, differ: set[str]) -> None:
    (tmp_path / "mine.py").write_text(SOURCE.format(condition=condition), encoding="utf-8")
    child = Child()
    child.load("mine", {}, [str(tmp_path)], None, "cpu")
    found = child.same_bits("float32", "cpu")
    # NumPy has no gradients, and the last entry needs another process, with other threads
    assert set(found["same"]) == {*SAME_BITS[:-1]} - {GRADIENTS_AGAIN} and found["reason"] is None
    assert {name for name, same in found["same"].items() if not same} == differ
