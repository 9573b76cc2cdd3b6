"""A new kind of mask is one class: the test adds one, and labels, questions, backends and references use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.backends.discovery import load
from attnlab.correctness.expected import expect
from attnlab.correctness.support import features
from attnlab.errors import FieldError
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.mask_kinds import Part, Place
from attnlab.workload.workload import GRADIENTS, Workload


@pytest.fixture
def dilated() -> Iterator[None]:
    """A kind of mask for this test only: query i sees the keys i, i − step − 1, i − 2·(step + 1), ..."""

    @dataclass(frozen=True)
    class Dilated(Part):
        kind: ClassVar[str] = "every_nth"
        step: int

        def __post_init__(self) -> None:
            if self.step < 1:
                raise FieldError("mask", f"every_nth takes a step of at least 1, got {self.step}")

        def visible(self, place: Place) -> NDArray[np.bool_]:
            back = place.diagonal("top_left") - place.columns
            return np.asarray((back >= 0) & (back % (self.step + 1) == 0))

    yield
    del Part.kinds["every_nth"]


def test_a_mask_is_one_class(dilated: None) -> None:
    asked = {"heads": 2, "queries": 7, "keys": 9, "head_dim": 4, "direction": "training"}
    workload = Workload(mask="every_nth(2) & window(5,0)", **asked)
    assert "every_nth(2)" in workload.label and Workload.from_dict(workload.to_dict()) == workload
    assert "mask every_nth" in features(), "a row of the support matrix"
    drawn = [Part.kinds["every_nth"].drawn(np.random.default_rng(seed), workload.shape) for seed in range(50)]
    assert None not in drawn, "random questions ask for it, however often it refuses what was drawn"
    seen = [[i >= j and (i - j) % 3 == 0 and i - j <= 5 for j in range(9)] for i in range(7)]
    assert workload.pairs == 2 * int(np.sum(seen))
    backend = load("torch_eager")
    answers = backend.named(workload, backend.bind(workload)())
    exact = expect(inputs_of(workload))
    for name in GRADIENTS:
        np.testing.assert_allclose(answers[name], exact[name].output, atol=1e-5)
