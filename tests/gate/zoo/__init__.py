"""The zoo: attentions that are wrong in one way each, and right ones that differ only in how they round."""

from __future__ import annotations

from . import coverage, formula, indexing, memory, rounding
from .fault import Fault

#: every fault by name
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *formula.FAULTS,
        *indexing.FAULTS,
        *memory.FAULTS,
        *rounding.FAULTS,
        *coverage.FAULTS,
    )
}
