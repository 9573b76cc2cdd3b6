"""Where a claim's experiment is carried out: its random numbers, the backends, and what it is made of.

An experiment takes its ingredients through `Laboratory.part`, so that a test can put a faulty one in and see the
verdict turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.errors import Declined
from attnlab.numerics.black_box import Attend
from attnlab.numerics.contestants import Contestant, generator

T = TypeVar("T")
#: in any number format
Array = NDArray[Any]


class Unmeasured(Exception):
    """The experiment could not be carried out; the message says why."""


@dataclass(frozen=True)
class Worst:
    """The largest of a figure over the backends, and through whom it was measured."""

    figure: float
    where: str


@dataclass(frozen=True)
class Laboratory:
    """`contestants` are the backends, `seed` and `claim` fix the random stream, `parts` stand in for ingredients."""

    contestants: tuple[Contestant, ...] = ()
    seed: int = 0
    claim: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)

    def of(self, claim: str) -> Laboratory:
        """The laboratory for `claim`: a random stream of its own, so that claims do not move each other."""
        return replace(self, claim=claim)

    def rng(self, *stream: int) -> np.random.Generator:
        """The random stream of this claim."""
        return generator(self.seed, zlib.crc32(self.claim.encode()), *stream)

    def normal(self, *shape: int, stream: int = 0) -> Array:
        """Standard normal numbers of `shape`."""
        return self.rng(stream).standard_normal(shape)

    def part(self, name: str, honest: T) -> T:
        """The ingredient `name`: `honest` unless a test has put another in its place."""
        found: T = self.parts.get(name, honest)
        return found

    def backends(self, *, fast: bool = False) -> list[tuple[str, Attend]]:
        """Names and calls of the backends, without the slow ones where `fast`. Raises Unmeasured for none."""
        chosen = [one for one in self.contestants if not (fast and one.slow)]
        if not chosen:
            raise Unmeasured("no backend can be asked here")
        return [(one.name, self.part("attend", one.attend)) for one in chosen]

    def worst(self, figure: Callable[[Attend], float], *, fast: bool = False) -> Worst:
        """The largest `figure(attend)` over the backends that do what is asked; a NaN counts as the largest.

        Raises Unmeasured where none does it, or where one answers with an error.
        """
        found: list[tuple[float, str]] = []
        backends = self.backends(fast=fast)
        for name, attend in backends:
            try:
                value = float(figure(attend))
            except Declined:
                continue
            except Exception as fault:  # a backend is other people's code and may raise anything
                raise Unmeasured(f"{name}: {type(fault).__name__}: {fault}") from fault
            found.append((np.inf if np.isnan(value) else value, name))
        if not found:
            raise Unmeasured("every backend declines this")
        value, name = max(found)
        if len(found) == 1:
            return Worst(value, name)
        count = f"{len(found)} of {len(backends)}" if len(found) < len(backends) else f"{len(found)}"
        alike = min(found)[0] == value
        return Worst(value, f"{count} backends" + ("" if alike else f", furthest {name}"))
