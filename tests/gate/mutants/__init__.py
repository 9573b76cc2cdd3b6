"""Attentions that are wrong in one way each, and right ones that differ only in how they round."""

from __future__ import annotations

from . import chain_rule, contract, formula, memory, paths, places, rounding
from .fault import Fault

#: by what they are faults of
BY_MODULE: dict[str, tuple[Fault, ...]] = {
    "Masks, biases, groups, caps, sinks": contract.FAULTS,
    "The formula": formula.FAULTS,
    "The chain rule": chain_rule.FAULTS,
    "Rows, heads, batches, components": places.FAULTS,
    "Memory": memory.FAULTS,
    "Precision": rounding.FAULTS,
    "One path": paths.FAULTS,
}
#: every fault by name
FAULTS: dict[str, Fault] = {fault.name: fault for faults in BY_MODULE.values() for fault in faults}
