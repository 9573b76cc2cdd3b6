"""The same bits again: what depends on the batch, the heads, the queries or the threads is found, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_workers import MOVING

from attnlab.backends.contender import parse_all
from attnlab.race.conductor import Conductor
from attnlab.workload.result import GRADIENTS_AGAIN, SAME_BITS, Invariance

#: in float64, row by row: no sum depends on what else is there, unless it is made to
SOURCE = """
import os
import numpy as np
LIBRARY = "numpy"
calls = 0
def attend(query, key, value, *, causal, scale):
    global calls
    calls += 1
    out = np.empty((*query.shape[:3], value.shape[3]))
    wide = [one.astype(np.float64) for one in (query, key, value)]
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            q, k, v = (one[b, h] for one in wide)
            scores = np.stack([k @ row for row in q]) * scale
            if causal:
                scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[b, h] = np.stack([row @ v for row in weights])
    found = out.astype(query.dtype)
    if {condition}:
        found[0, 0, 0, 0] = np.nextafter(found[0, 0, 0, 0], query.dtype.type(9))
    return found
"""


def asked(folder: Path, condition: str, dtypes: tuple[str, ...] = ("float32",)) -> list[Invariance]:
    """What is found of a backend whose first number moves by one unit where `condition` holds."""
    (folder / "mine.py").write_text(SOURCE.format(condition=condition), encoding="utf-8")
    contenders = parse_all(["mine[threads=2]", "mine[threads=2]"])
    with Conductor(contenders, folders=[str(folder)]) as conductor:
        return conductor.invariance([one.name for one in contenders], dtypes, "cpu")


@pytest.mark.parametrize(
    ("condition", "differ"),
    [
        ("False", set()),
        # the whole is the fourth call of its process, in the other the first
        ("calls % 2", {"again", "head alone", "one query alone", "other threads"}),
        ("query.shape[0] == 1", {"batch alone"}),
        ("query.shape[1] == 1", {"head alone"}),
        ("1 < query.shape[2] < 40", {"a chunk of queries"}),
        ("query.shape[2] == 1", {"one query alone"}),
        ("os.environ['OMP_NUM_THREADS'] == '1'", {"other threads"}),
    ],
)
def test_what_the_bits_depend_on_is_found(tmp_path: Path, condition: str, differ: set[str]) -> None:
    """And a second entry of a contender is not asked."""
    (found,) = asked(tmp_path, condition)
    assert set(found.same) == {*SAME_BITS} - {GRADIENTS_AGAIN}  # NumPy gives none
    assert {name for name, same in found.same.items() if not same} == differ
    assert (found.contender, found.dtype, found.reason) == ("mine[threads=2]", "float32", None)


@pytest.mark.parametrize("moves", [False, True])
def test_whether_gradients_are_the_same_again_is_found(tmp_path: Path, moves: bool) -> None:
    """Beside an output that is; they are the same in the first two calls."""
    how = "output.requires_grad and output.register_hook(moved)" if moves else "pass"
    (tmp_path / "mine.py").write_text(MOVING.format(turns=3, how=how), encoding="utf-8")
    with Conductor(parse_all(["mine"]), folders=[str(tmp_path)]) as conductor:
        (found,) = conductor.invariance(["mine"], ("float32",), "cpu")
    assert found.same["again"] and found.same[GRADIENTS_AGAIN] is not moves


def test_what_it_raises_is_told(tmp_path: Path) -> None:
    (found,) = asked(tmp_path, "query.shape[0] == 1 and [][0]")
    assert found.same == {} and "IndexError" in str(found.reason)


def test_it_is_remembered_until_a_text_or_what_was_asked_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beside a backend may be read by it."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    (first,), (second,) = (asked(tmp_path, "False") for _ in range(2))
    assert second.remembered and second == replace(first, remembered=second.remembered)
    (tmp_path / "_beside.py").write_text("x = 1")
    assert asked(tmp_path, "False")[0].remembered is None
    assert [one.remembered for one in asked(tmp_path, "False", ("float32", "float16"))] == [None, None]
    # what could not all be asked is not remembered
    assert [asked(tmp_path, "query.shape[0] == 1 and [][0]")[0].remembered for _ in range(2)] == [None, None]
