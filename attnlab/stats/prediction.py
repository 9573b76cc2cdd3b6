"""What a call would take at a length that was not tried: its growth at shorter lengths, carried on, with an interval.

Two doubts widen it. The figures scatter around the fitted law: it is fitted again to figures drawn around it, with the
scatter that was left (Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 6.2.3). And the law
may change on the way: each length that has enough others at half of it or below is foretold by these, and how far this
missed, for each doubling, is taken to go on for every doubling up to the length that is asked for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnlab.stats.growth import LEAST_LENGTHS, Floats, Model, Timed, choose, solve

#: over more than so many times the longest measured length, nothing that was measured tells of the way
FAR = 8
#: lengths that must be foretold by others, for an interval
_FORETOLD = 2
_DRAWS = 500


@dataclass(frozen=True)
class Prediction:
    """A figure at `length` (seconds or bytes), [`low`, `high`] its 95 % interval, from `lengths` up to `longest`."""

    value: float
    low: float
    high: float
    length: int
    lengths: int
    longest: int

    @property
    def far(self) -> bool:
        """Whether it lies so far beyond what was measured that even its interval is a guess."""
        return self.length > FAR * self.longest


def predict(
    known: Mapping[int, float],
    length: int,
    kept: Mapping[int, float] | None = None,
    sure: Mapping[int, float] | None = None,
) -> Prediction | None:
    """The figure at `length` from those `known`, all above 0, at shorter lengths; None where these are too few.

    kept : by length, `length` included, the pairs of one head that a mask keeps; where these explain the figures better
    than n² does, they are what grows. sure : by length likewise, a part of the figure that is known, as is the size of
    what is returned; the law is that of the rest.
    """
    lengths = sorted(known)
    sure = sure or dict.fromkeys((*lengths, length), 0.0)
    figures = np.array([known[one] - sure[one] for one in lengths])
    missed = []  # ln(figure / foretold), for each doubling
    for one in lengths:
        count = sum(2 * other <= one for other in lengths)
        if count >= LEAST_LENGTHS:
            model = _model(lengths[:count], figures[:count], one, kept)
            foretold = _at(model, lengths[:count], figures[:count], one) + sure[one]
            doublings = math.log2(one / lengths[count - 1])
            missed.append(math.log(known[one] / max(foretold, sys.float_info.min)) / doublings)
    if len(missed) < _FORETOLD:
        return None
    model = _model(lengths, figures, length, kept)
    terms = model.columns(lengths)
    best = solve(terms, figures)
    law = terms @ best
    freedom = max(1, len(lengths) - int(np.count_nonzero(best)) - (model.split is not None))
    scatter = math.sqrt(float((np.log(figures / law) ** 2).sum()) / freedom)
    rng = np.random.default_rng(0)
    noise = scatter * np.sqrt(freedom / rng.chisquare(freedom, (_DRAWS, 1)))
    around = law * np.exp(noise * rng.standard_normal((_DRAWS, len(lengths))))
    drift = math.sqrt(float(np.square(missed).mean())) * math.log2(length / lengths[-1])
    changed = np.exp(np.clip(drift * rng.standard_t(len(missed), _DRAWS), -50, 50))
    value = _at(model, lengths, figures, length) + sure[length]
    found = (np.array([_at(model, lengths, one, length) for one in around]) + sure[length]) * changed
    low, high = np.quantile(found, [0.025, 0.975]).tolist()
    low = min(max(low, sure[length]), value)
    return Prediction(value, low, max(high, value), length, len(lengths), lengths[-1])


def _model(lengths: list[int], figures: Floats, length: int, kept: Mapping[int, float] | None) -> Model:
    """The law of `figures` by length, that says something of `length` too."""
    return choose(lengths, figures, Timed(dict.fromkeys((*lengths, length), ()), kept))


def _at(model: Model, lengths: list[int], figures: Floats, length: int) -> float:
    """The figure at `length` by the model fitted to `figures`."""
    return float(model.columns([length])[0] @ solve(model.columns(lengths), figures))
