"""The zoo of backward passes: each wrong in one way."""

from __future__ import annotations

from . import backward_formula, backward_indexing, backward_memory, backward_rounding
from .fault import Fault

_ALL = (
    *backward_formula.FAULTS,
    *backward_indexing.FAULTS,
    *backward_memory.FAULTS,
    *backward_rounding.FAULTS,
)

#: every fault by name
BACKWARD_FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
