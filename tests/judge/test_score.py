"""The reward: the best of a hundred copies gets none, a faster candidate gets the lower end of its interval."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from attnlab.judge.candidates import Candidate
from attnlab.judge.score import LOWEST, Record, Scatter, Seat

VISITS, ROUNDS = 5, 6


def seat(rng: np.random.Generator, seconds: float) -> Seat:
    """A seat whose visits scatter by 3 %, and whose turns within a visit scatter by another 3 %."""
    blank = Record(name="copy", status="judged", correct=True)
    found = Seat(Candidate("copy", "known", "copy", "numpy"), cast(Any, None), blank)
    for visit in range(VISITS):
        shift = rng.normal(0, 0.03)
        for at in range(ROUNDS):
            found.turns[1000 * visit + at] = seconds * float(np.exp(shift + rng.normal(0, 0.03)))
    return found


def rewarded(rng: np.random.Generator, seconds: float, among: int) -> Record:
    copy = seat(rng, seconds)
    copy.score(seat(rng, 1.0), range(VISITS), among, Scatter(), set())
    return copy.record


def test_the_best_of_a_hundred_copies_is_not_rewarded() -> None:
    rng = np.random.default_rng(1)
    best = [max(rewarded(rng, 1.0, 100).reward for _ in range(100)) for _ in range(10)]
    assert sum(one > 0 for one in best) <= 1


def test_a_faster_one_is_rewarded_below_its_true_speed() -> None:
    found = rewarded(np.random.default_rng(2), 0.5, 3)
    assert found.low is not None and found.speedup is not None
    assert 0.4 < found.reward == np.log2(found.low) < np.log2(found.speedup)
    assert found.verdict == "faster"


def test_a_slow_one_is_not_below_the_lowest_reward() -> None:
    assert rewarded(np.random.default_rng(3), 5.0, 3).reward == LOWEST
