"""The order of turns, and the fixed loop that tells when the machine itself was disturbed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import psutil

T = TypeVar("T")
_LOOPS = 100_000


def latin_square(entries: Sequence[T], seed: int) -> Iterator[list[T]]:
    """Endless rounds in which every entry takes every place equally often.

    The order is shuffled once a block of len(entries) rounds and rotated one place a round; two entries
    alternate as A B, B A, B A, A B, which cancels a linear drift.
    """
    generator = random.Random(seed)
    order = list(entries)
    if len(order) == 2:
        while True:
            first, second = order
            yield from ([first, second], [second, first], [second, first], [first, second])
    while True:
        generator.shuffle(order)
        for shift in range(max(1, len(order))):
            yield order[shift:] + order[:shift]


def calibration_seconds() -> float:
    """Seconds that a fixed pure-Python loop takes now: about a millisecond, undisturbed."""
    start = time.perf_counter()
    for _ in range(_LOOPS):
        pass
    return time.perf_counter() - start


def steal_seconds() -> float:
    """CPU seconds that a hypervisor has taken from this machine since it started; 0 where it does not say."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))
