"""A new kind of mask: every so many keys, counted back from a query's own place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.mask_part import Part, Place, Shape


@dataclass(frozen=True)
class Dilated(Part):
    """Query i sees the keys i, i − step, i − 2·step, ... (top-left)."""

    kind: ClassVar[str] = "dilated"
    step: int

    def visible(self, place: Place) -> NDArray[np.bool_]:
        back = place.diagonal("top_left") - place.columns
        return np.asarray((back >= 0) & (back % self.step == 0))

    @property
    def text(self) -> str:
        return f"dilated({self.step})"

    @classmethod
    def parse(cls, *arguments: str) -> Dilated:
        (step,) = map(int, arguments)
        return cls(step)

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Dilated:
        return cls(int(rng.integers(1, 5)))
