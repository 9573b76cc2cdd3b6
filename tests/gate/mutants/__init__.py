"""The zoo: attentions that are wrong in one way each, and right ones that differ only in how they round."""

from __future__ import annotations

from . import chain_rule, contract, formula, memory, paths, places, rounding
from .fault import Fault

_ALL = (
    *contract.FAULTS,
    *formula.FAULTS,
    *chain_rule.FAULTS,
    *places.FAULTS,
    *memory.FAULTS,
    *rounding.FAULTS,
    *paths.FAULTS,
)
#: every fault by name
FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
