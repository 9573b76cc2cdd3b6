"""Faulty attentions are caught in a dtype in which they are faults, and no right variant is."""

from __future__ import annotations

import pytest
from black_box import asked
from mutants import FAULTS
from mutants.rounding import RIGHT

from attnlab.correctness.check import examine

#: of all of them, every so many; `python benchmarks faults` asks all, in all dtypes, over many seeds
EVERY = 16
#: what is right in a dtype is worked out once: most are faults in the first
DTYPES = ("bfloat16", "float32")


@pytest.mark.parametrize("name", list(FAULTS)[::EVERY])
def test_a_fault_is_caught(name: str) -> None:
    """A question and a reason are named, in one line."""
    fault = FAULTS[name]
    dtype = next(one for one in DTYPES if one in fault.dtypes)
    found = examine(asked(fault.attention), dtype, kinds=(fault.direction,))
    assert found.passed is False and found.fault and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize("name", list(RIGHT)[:: EVERY // 2])
def test_a_right_variant_passes(name: str) -> None:
    """Whatever is rounded, stored, blocked or added in another order."""
    found = examine(asked(RIGHT[name]), DTYPES[0], daily=True)
    assert found.passed and found.left_out == 0, found.fault


def test_every_excuse_is_arithmetic() -> None:
    """Where a fault is none in a dtype, its effect is at most what the same dtype costs a right implementation."""
    assert len(FAULTS) >= 400
    for fault in FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for dtype, excuse in fault.excuses:
            assert 0 <= excuse.effect <= excuse.allowed, (fault.name, dtype, excuse)
