"""What is wrong with an answer is said by its name."""

from __future__ import annotations

import numpy as np

from attnlab.ground.workload import Workload
from attnlab.judging import accuracy


def test_not_a_number_is_called_by_its_name() -> None:
    """And neither an error of nan nor a pass."""
    answer = np.full((1, 1, 4, 4), np.nan)
    answer[0, 0, 0, 0] = 1.0
    judged = accuracy.judge(Workload(heads=1, queries=4, keys=4, head_dim=4), [0, 1, 2, 3], answer)
    assert not judged.passed
    assert judged.reason == "NaN in 15 of 16 values, in query row 0 first; every input is finite"
