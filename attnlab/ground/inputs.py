"""A workload's arrays: equal workloads give bit-equal inputs, in every process and for every library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.dtypes import round_to
from attnlab.ground.errors import Declined
from attnlab.ground.regimes import REGIMES
from attnlab.ground.workload import Workload


def inputs(workload: Workload) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Query, key and value of `workload`, rounded to its dtype (bfloat16 in float32 arrays).

    Shapes as in `Workload`. Each array and the regime have a random stream of their own, so that changing
    the number of keys leaves the queries as they were.

    Raises Declined, whoever asks, where the regime needs numbers that the dtype does not hold: a logit of some
    size at a scale near 0 needs queries beyond its largest.
    """
    w = workload
    shapes = (
        (w.batch, w.heads, w.queries, w.head_dim),
        (w.batch, w.heads, w.keys, w.head_dim),
        (w.batch, w.heads, w.keys, w.value_dim),
    )
    q, k, v = (
        np.random.default_rng([w.seed, stream]).standard_normal(shape) for stream, shape in enumerate(shapes)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        drawn = REGIMES[w.regime](q, k, v, w.scale, np.random.default_rng([w.seed, 3]))
        q, k, v = (round_to(array, w.dtype) for array in drawn)
    if not all(np.isfinite(array).all() for array in (q, k, v)):
        raise Declined(
            f"no {w.dtype} holds the inputs of {w.regime} at scale {w.scale:g}; use a larger scale"
        )
    return q, k, v
