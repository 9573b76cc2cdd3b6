"""How a contender's time grows with length: t = a + b n + c n², with no coefficient below zero.

Residuals are divided by t, so that short calls count as much as long ones: least squares on absolute times would
fit the longest call alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: a fit that misses a measured time by more than this is given no label
WORST = 0.10
#: with fewer lengths than this three coefficients fit anything
LEAST_LENGTHS = 4
_RESAMPLES = 200


@dataclass(frozen=True)
class Growth:
    """`coefficients` a (s), b (s per position), c (s per position²), each with its 95 % interval.

    The intervals come from resampling rounds and hold the noise only, not what the model lacks.
    `largest_error` is the largest relative error of the fit; `exponents` are log2(t(2n) / t(n)) by n.
    `shares` are the parts of the three terms in the fitted time at the longest length.
    """

    coefficients: tuple[float, float, float]
    intervals: tuple[tuple[float, float], ...]
    largest_error: float
    exponents: Mapping[int, float]
    shares: tuple[float, float, float]

    @property
    def label(self) -> str | None:
        """Which term leads at the longest length; None where the fit is worse than 10 %."""
        if self.largest_error > WORST:
            return None
        return ("constant", "linear", "quadratic")[int(np.argmax(self.shares))]


def fit(samples: Mapping[int, Sequence[float]], *, seed: int = 0) -> Growth | None:
    """The fit to the medians of `samples` (seconds, by length); None for fewer than four lengths.

    Non-negative least squares (Lawson and Hanson 1974, chapter 23) and a percentile bootstrap with a fixed seed.
    """
    lengths = sorted(samples)
    if len(lengths) < LEAST_LENGTHS:
        return None
    medians = np.array([float(np.median(samples[n])) for n in lengths])
    n = np.array(lengths, float)
    terms = np.stack([np.ones_like(n), n, n**2], axis=1)
    best = _solve(terms, medians)
    fitted = terms @ best
    resampled = np.array([_solve(terms, row) for row in _resample(samples, lengths, seed)])
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    last = terms[-1] * best / fitted[-1]
    times = dict(zip(lengths, medians, strict=True))
    return Growth(
        coefficients=(float(best[0]), float(best[1]), float(best[2])),
        intervals=tuple((float(a), float(b)) for a, b in zip(low, high, strict=True)),
        largest_error=float(np.abs(fitted / medians - 1).max()),
        exponents={one: math.log2(times[2 * one] / times[one]) for one in lengths if 2 * one in times},
        shares=(float(last[0]), float(last[1]), float(last[2])),
    )


def _solve(terms: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls

    weighted = terms / times[:, None]
    scale = np.linalg.norm(weighted, axis=0)  # columns of like size, for the solver's tolerance
    solution: NDArray[np.float64] = nnls(weighted / scale, np.ones(len(times)))[0] / scale
    return solution


def _resample(
    samples: Mapping[int, Sequence[float]], lengths: Sequence[int], seed: int
) -> NDArray[np.float64]:
    """Medians of rounds drawn again with replacement: (resamples, lengths)."""
    generator = np.random.default_rng(seed)
    columns = []
    for n in lengths:
        values = np.asarray(samples[n], float)
        drawn = generator.choice(values, size=(_RESAMPLES, len(values)))
        columns.append(np.median(drawn, axis=1))
    return np.stack(columns, axis=1)
