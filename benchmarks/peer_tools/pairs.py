"""What is compared: pairs of contenders on one workload, and what is known of the truth beforehand."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Pair:
    """Two contenders on self-attention at batch 1, head_dim 64, float32.

    `truth` is the time of `second` over that of `first`, where it is known by construction; None where a long
    reference must tell it.
    """

    name: str
    first: str
    second: str
    heads: int
    length: int
    truth: float | None

    @property
    def is_aa(self) -> bool:
        """Whether both are the same, so that any claim is false."""
        return self.first == self.second

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a child process and for the store."""
        return asdict(self)


def pairs(tiny: bool = False) -> list[Pair]:
    """Three of A/A, two with a difference that is made, one natural. `tiny` shrinks them all, to try the script out."""
    slowed = [
        Pair(f"slowed={percent}", "torch_eager", f"torch_eager[slowed={percent}]", 8, 256, 1 + percent / 100)
        for percent in (3, 10)
    ]
    found = [
        Pair("A/A torch_eager", "torch_eager", "torch_eager", 16, 512, 1.0),
        *slowed[:1],
        Pair("A/A torch_sdpa", "torch_sdpa", "torch_sdpa", 4, 256, 1.0),
        *slowed[1:],
        Pair("A/A numpy_vectorized", "numpy_vectorized", "numpy_vectorized", 8, 256, 1.0),
        # score matrices of 64 KiB stay below malloc's threshold, so that no tool's allocator settings move the truth
        Pair("natural", "torch_sdpa", "torch_eager", 4, 64, None),
    ]
    if tiny:
        found = [Pair(p.name, p.first, p.second, 2, 64, p.truth) for p in found]
    return found


def bound(contender: str, pair: Pair) -> Callable[[], Any]:
    """The contender's call on the pair's workload, slowed where its notation says so."""
    from attnlab.backends.contender import Contender
    from attnlab.backends.discovery import load
    from attnlab.problem.workload import Workload
    from attnlab.race.worker import slowed

    one = Contender.parse(contender)
    backend = load(one.backend, settings=dict(one.settings))
    call = backend.bind(Workload(heads=pair.heads, queries=pair.length, keys=pair.length))
    return slowed(call, backend.open("cpu"), one.slowed) if one.slowed else call


def long_run(contender: str, pair: Pair, seconds: float = 0.25, placements: int = 3) -> float:
    """Seconds a call in this process: the median over `placements` of the arrays, each warmed up and timed."""
    medians = []
    for _ in range(placements):
        padding = np.ones(random.SystemRandom().randrange(1, 2**21), np.uint8)
        call, times = bound(contender, pair), []
        started = time.perf_counter()
        while (now := time.perf_counter()) < started + 1.5 * seconds:
            call()
            if now > started + 0.5 * seconds:  # what came before was warm-up
                times.append(time.perf_counter() - now)
        medians.append(statistics.median(times))
        del padding, call
    return statistics.median(medians)


def reference_ratio(first: list[float], second: list[float]) -> tuple[float, float]:
    """The ratio of the geometric means of the processes' times, second over first, and its relative standard error."""
    logs = [[math.log(one) for one in side] for side in (first, second)]
    ratio = math.exp(statistics.fmean(logs[1]) - statistics.fmean(logs[0]))
    error = (
        math.sqrt(sum(statistics.variance(side) / len(side) for side in logs)) if len(first) > 1 else math.nan
    )
    return ratio, error
