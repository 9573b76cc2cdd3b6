"""Faulty attentions are caught in a dtype in which the fault counts, and right variants pass."""

from __future__ import annotations

import pytest
from black_box import asked
from mutants import FAULTS
from mutants.rounding import RIGHT

from attnlab.correctness.check import examine

#: step through the list of faults; `python benchmarks faults` tests all of them, in all dtypes, with many seeds
EVERY = 16
#: right answers are computed once for each dtype, so most faults are tested in the first
DTYPES = ("bfloat16", "float32")


@pytest.mark.parametrize("name", list(FAULTS)[::EVERY])
def test_a_fault_is_caught(name: str) -> None:
    """The report is one line with the question and the reason."""
    fault = FAULTS[name]
    dtype = next(one for one in DTYPES if one in fault.dtypes)
    found = examine(asked(fault.attention), dtype, kinds=(fault.direction,))
    assert found.passed is False and found.fault and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize("name", list(RIGHT)[:: EVERY // 2])
def test_a_right_variant_passes(name: str) -> None:
    """It passes whatever it rounds, stores, blocks or adds in another order."""
    found = examine(asked(RIGHT[name]), DTYPES[0], daily=True)
    assert found.passed and found.left_out == 0, found.fault


def test_every_excuse_is_arithmetic() -> None:
    """If a fault is excused in a dtype, its effect is at most what this dtype costs a right implementation."""
    assert len(FAULTS) >= 400
    for fault in FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for dtype, excuse in fault.excuses:
            assert 0 <= excuse.effect <= excuse.allowed, (fault.name, dtype, excuse)
