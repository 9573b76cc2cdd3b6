"""Attention functions that are each wrong in one way, and right ones that differ only in how they round."""

from __future__ import annotations

from .contract import CONTRACT, PLACES
from .fault import Fault
from .formula import CHAIN_RULE, FORMULA
from .paths import MEMORY, PATHS
from .rounding import PRECISION

#: the faults, by what is wrong
BY_MODULE: dict[str, tuple[Fault, ...]] = {
    "Masks, biases, groups, caps, sinks": CONTRACT,
    "The formula": FORMULA,
    "The chain rule": CHAIN_RULE,
    "Rows, heads, batches, components": PLACES,
    "Memory": MEMORY,
    "Precision": PRECISION,
    "One path": PATHS,
}
#: every fault by name
FAULTS: dict[str, Fault] = {fault.name: fault for faults in BY_MODULE.values() for fault in faults}
