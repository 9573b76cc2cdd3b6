"""How long a backend will take, by a trial of it, so that an experiment can ask a slow one for less."""

from __future__ import annotations

import time

import numpy as np

from attnlab.numerics.black_box import Attend

#: a backend slower than this a query-key pair (the fast ones need a few nanoseconds) gets the small sizes
SLOW_SECONDS_PER_PAIR = 1e-6


def is_slow(attend: Attend) -> bool:
    """Whether `attend` needs more than `SLOW_SECONDS_PER_PAIR` a query-key pair, as a loop in Python does.

    The best of five calls on 64 queries and 64 keys in float64, in processor time, so that
    neither start-up nor another process's turn on the processor is counted.
    """
    ones = np.ones((1, 1, 64, 64))
    seconds = []
    for _ in range(5):
        start = time.process_time()
        attend(ones, ones, ones, causal=False, scale=1.0)
        seconds.append(time.process_time() - start)
    return min(seconds) / 64**2 > SLOW_SECONDS_PER_PAIR
