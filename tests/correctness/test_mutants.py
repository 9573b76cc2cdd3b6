"""Faulty attentions are caught in the dtypes in which they are faults, and no right variant is."""

from __future__ import annotations

from typing import Any

import pytest
from black_box import asked
from mutants import FAULTS
from mutants.rounding import RIGHT

from attnlab.correctness.examination import examine
from attnlab.workload.vocabulary import DTYPES

#: of all of them, every so many in the plain suite; `python benchmarks faults` asks all, in all dtypes, over many seeds
EVERY = 5


def in_turn(dtypes: tuple[tuple[str, tuple[str, ...]], ...]) -> list[Any]:
    """Each with one of its dtypes, one dtype after another: what is right in one is worked out once."""
    pairs = [(name, own[at % len(own)], at) for at, (name, own) in enumerate(dtypes)]
    return [
        pytest.param(name, dtype, marks=() if at % EVERY == 0 else pytest.mark.thorough)
        for name, dtype, at in sorted(pairs, key=lambda one: one[1])
    ]


@pytest.mark.parametrize(
    ("name", "dtype"), in_turn(tuple((fault.name, fault.dtypes) for fault in FAULTS.values()))
)
def test_a_fault_is_caught(name: str, dtype: str) -> None:
    """The gate names a question and a reason, in one line."""
    fault = FAULTS[name]
    found = examine(asked(fault.attention), dtype, kinds=(fault.direction,))
    assert found.passed is False
    assert found.fault is not None and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize(("name", "dtype"), in_turn(tuple((name, DTYPES) for name in RIGHT)))
def test_a_right_variant_passes(name: str, dtype: str) -> None:
    """Whatever is rounded, stored, blocked or added in another order."""
    found = examine(asked(RIGHT[name]), dtype)
    assert found.fault is None
    assert found.passed and found.left_out == 0


def test_every_excuse_is_arithmetic() -> None:
    """Where a fault is none in a dtype, its effect is at most what the same dtype costs a right implementation."""
    assert len(FAULTS) >= 200
    for fault in FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for dtype, excuse in fault.excuses:
            assert 0 <= excuse.effect <= excuse.allowed, (fault.name, dtype, excuse)
