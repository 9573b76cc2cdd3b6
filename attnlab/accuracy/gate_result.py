"""What the gate found in one dtype, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlab.accuracy.evidence import Evidence
from attnlab.accuracy.question_budget import Asking


@dataclass(frozen=True)
class Precision:
    """How exact a backend is in one dtype, by the question that tells the classes apart."""

    kind: str | None
    relative_error: float
    budget_ratio: float
    max_ulp: float
    bias: float

    @classmethod
    def of(cls, evidence: Evidence) -> Precision:
        """By the evidence on one answer."""
        return cls(evidence.kind, evidence.relative_error, evidence.ratio, evidence.max_ulp, evidence.bias)


@dataclass(frozen=True)
class Examined:
    """What the gate found in one dtype; `fault` is None where all held.

    left_out : questions that are too slow for this backend. refusal : why it declined, where it answered none.
    """

    dtype: str
    fault: str | None
    asked: int
    declined: int
    left_out: int
    precision: Precision | None
    refusal: str | None = None

    @classmethod
    def of(
        cls, dtype: str, fault: str | None, asking: Asking[Any, Any], precision: Precision | None
    ) -> Examined:
        """With the account of what was asked."""
        refusal = None if asking.asked else asking.refusal
        return cls(dtype, fault, asking.asked, asking.declined, asking.left_out, precision, refusal)

    @classmethod
    def none(cls, dtype: str, asking: Asking[Any, Any], refusal: str) -> Examined:
        """What it answered counts as declined, for the reason `refusal`."""
        return cls(dtype, None, 0, asking.asked + asking.declined, asking.left_out, None, refusal)

    @property
    def passed(self) -> bool | None:
        """Whether all held, None where it declined everything."""
        if self.fault:
            return False
        return True if self.asked else None
