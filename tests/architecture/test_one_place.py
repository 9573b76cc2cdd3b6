"""A new mask, direction or backend is one class, one row or one file: here one is added to each, and asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.backend.discovery import load
from attnlab.backend.library import array_libraries, library_names, products
from attnlab.problem.directions import DIRECTIONS, GRADIENTS, Direction
from attnlab.problem.inputs import problem_of
from attnlab.problem.mask_parts import Part, Place
from attnlab.problem.workload import Workload
from attnlab.runs.support import features
from attnlab.theory import exact_gradients


@pytest.fixture
def dilated() -> Iterator[None]:
    """A kind of mask for this test alone: query i sees the keys i, i − step, i − 2·step, ..."""

    @dataclass(frozen=True)
    class Dilated(Part):
        kind: ClassVar[str] = "dilated"
        step: int

        def visible(self, place: Place) -> NDArray[np.bool_]:
            back = place.diagonal("top_left") - place.columns
            return np.asarray((back >= 0) & (back % self.step == 0))

        @classmethod
        def drawn(cls, rng: np.random.Generator, shape: object) -> Part:
            return cls(int(rng.integers(1, 5)))

    yield
    del Part.kinds["dilated"]


def test_a_mask_is_one_class(dilated: None) -> None:
    asked = {"heads": 2, "queries": 7, "keys": 9, "head_dim": 4, "direction": "training"}
    workload = Workload(mask="dilated(3) & window(5,0)", **asked)
    assert "dilated(3)" in workload.label and Workload.from_dict(workload.to_dict()) == workload
    assert "mask dilated" in features(), "a row of the support matrix"
    seen = [[i >= j and (i - j) % 3 == 0 and i - j <= 5 for j in range(9)] for i in range(7)]
    assert workload.pairs == 2 * int(np.sum(seen))
    backend = load("torch_eager")
    answers = backend.named(workload, backend.bind(workload)())
    for name, gradient in zip(GRADIENTS, exact_gradients(problem_of(workload)), strict=True):
        np.testing.assert_allclose(answers[name], gradient, atol=1e-5)


def test_a_direction_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where key and value come from a frozen model: the gradient of the query alone."""
    monkeypatch.setitem(DIRECTIONS, "query_only", Direction(GRADIENTS[:1], 1.5))
    workload = Workload(heads=2, queries=5, keys=7, head_dim=4).with_()
    object.__setattr__(workload, "direction", "query_only")  # the field's names were read at import
    assert workload.flops == 1.5 * workload.with_(direction="forward").flops
    assert workload.output_bytes == 2 * 5 * 4 * 4
    backend = load("torch_eager")
    (found,) = backend.named(workload, backend.bind(workload)()).values()
    np.testing.assert_allclose(found, exact_gradients(problem_of(workload))[0], atol=1e-5)


def test_a_backend_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\nLIBRARY = 'numpy'\n\n\n"
        "def attend(query, key, value, *, scale, visible=None):\n"
        "    output = np.zeros((*query.shape[:3], value.shape[-1]), query.dtype)\n"
        "    for batch, head in np.ndindex(query.shape[:2]):\n"
        "        scores = query[batch, head] @ key[batch, head].T * scale\n"
        "        if visible is not None:\n"
        "            seen = visible(batch, head, slice(None), slice(None))\n"
        "            scores = np.where(seen, scores, -np.inf)\n"
        "        weights = np.exp(scores - scores.max(-1, keepdims=True))\n"
        "        output[batch, head] = weights / weights.sum(-1, keepdims=True) @ value[batch, head]\n"
        "    return output\n"
    )
    mine, reference = load("mine", [tmp_path]), load("naive_loop")
    workload = Workload(batch=2, heads=2, queries=5, keys=7, head_dim=4, window=(2, 1), mask="random(0.9)")
    found = mine.named(workload, mine.bind(workload)())["output"]
    np.testing.assert_allclose(found, reference.bind(workload)(), atol=1e-5)
    assert mine.declines(workload.with_(bias="normal")) == "its attend() takes no bias"


def test_a_library_is_one_file() -> None:
    """And has a ceiling where it has a product of its own."""
    assert {"numpy", "torch", "jax", "mlx"} <= set(array_libraries()) <= set(library_names())
    assert {*array_libraries(), "openvino", "onnxruntime"} == set(products())
