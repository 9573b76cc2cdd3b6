"""What backends share that call kernels of other packages: what they make once and keep, and a scale that fits all."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

#: a scale below it is folded into the query: the smallest normal number of float32
LEAST_SCALE = 2.0**-126


def positive_scale(query: Any, scale: float) -> tuple[Any, float]:
    """(query', scale') with the same logits and scale' > 0, as they are for a scale of at least `LEAST_SCALE`.

    PyTorch's fused kernels mask with -inf and multiply by the scale afterwards, in float32: 0·(-inf) and -1·(-inf)
    turn every causal row into NaN (PyTorch 2.13, CPU flash kernel). A scale that float32 takes for zero is such a 0;
    other libraries refuse it.
    """
    if scale >= LEAST_SCALE:
        return query, scale
    return (-query, -scale) if scale <= -LEAST_SCALE else (query * scale, 1.0)


class Recipe(partial[Any]):
    """How a compiled model is made: calls with equal arguments are equal, so that one can be kept for both."""

    def __hash__(self) -> int:
        return hash((self.func, self.args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.func, self.args) == (other.func, other.args)


class Made:
    """``make(array, *rest)``, kept while the array lives: what a kernel wants made of a mask, say.

    A worker binds an array once and hands over the same one in every call, so that it is made in the first call, before
    any clock. Of changes in place those are seen that PyTorch counts. What is made must not refer to the array.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._kept: dict[Hashable, tuple[weakref.ref[Any], Any, Any]] = {}

    def __call__(self, array: Any, *rest: Hashable) -> Any:
        key, version = (id(array), rest), getattr(array, "_version", None)
        known = self._kept.get(key)
        if known is not None and known[0]() is array and known[1] == version:
            return known[2]
        found = self._make(array, *rest)
        self._kept[key] = weakref.ref(array, lambda _: self._kept.pop(key, None)), version, found
        return found


class Programs:
    """What a library has prepared to compute, one program for each recipe and number of threads.

    make : from what is asked and the threads to the program; what is asked is hashable. watched : the same for a call
    that is watched, where a program has to be made otherwise for that.
    """

    def __init__(self, make: Callable[..., Any], watched: Callable[..., Any] | None = None) -> None:
        self.threads: int | None = None
        self._make, self._watched = functools.lru_cache(maxsize=64)(make), watched
        self._ran: list[Any] | None = None

    def get(self, *asked: Hashable) -> Any:
        """The program for what is asked, made now where there is none yet."""
        threads = self.threads or len(os.sched_getaffinity(0))
        if self._ran is None:
            return self._make(*asked, threads)
        program = (self._watched or self._make)(*asked, threads)
        self._ran.append(program)
        return program

    def used_by(self, call: Callable[[], Any]) -> list[Any]:
        """The programs that one `call` gets."""
        self._ran = []
        try:
            call()
            return self._ran
        finally:
            self._ran = None
