"""What is wrong with an answer is said by its name."""

from __future__ import annotations

import numpy as np

from attnlab.accuracy import race_check
from attnlab.contract.workload import Workload


def test_not_a_number_is_called_by_its_name() -> None:
    """And neither an error of nan nor a pass."""
    answer = np.full((1, 1, 4, 4), np.nan)
    answer[0, 0, 0, 0] = 1.0
    judged = race_check.judge(Workload(heads=1, queries=4, keys=4, head_dim=4), [0, 1, 2, 3], answer)
    assert not judged.passed
    assert judged.reason == "NaN in 15 of 16 values, in row 0 first; every input is finite"


def test_a_sampled_row_is_named_by_its_number_in_the_output() -> None:
    """Not by its place in the sample: that is where a kernel author will look."""
    workload = Workload(heads=2, queries=4096, keys=512, head_dim=8)
    rows = race_check.sampled_rows(workload)
    assert len(rows) < workload.queries
    exact = race_check.references(workload, tuple(rows))["output"].output.astype(np.float32)
    wrong = rows.index(rows[len(rows) // 2])
    exact[0, 1, wrong] += 1
    found = race_check.judge(workload, rows, exact)
    assert not found.passed and f"row {rows[wrong]}," in (found.reason or "")
    exact[0, 1, wrong] = np.nan
    assert f"row {rows[wrong]} first" in (race_check.judge(workload, rows, exact).reason or "")
