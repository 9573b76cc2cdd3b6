"""One question before its arrays are drawn: a line of the tables of `questions` and `coverage`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Form:
    """One question before its arrays are drawn. `inputs` names a regime or a construction of `certain`.

    values : "normal", or "ones" (rows must sum to 1), or "keys" (V = K). layout : how the arrays lie in memory,
    see `attnlab.measuring.probe`. directions : the z beyond which a gain or a wrong scale is told, None where it is
    not looked for. It needs some hundred rows that are not saturated; and a scale whose root no format holds may
    be folded into the keys and rounded there, once for all rows, so that z must be larger. every : judge every
    so many rows, and the last; all are asked for.
    """

    name: str
    batch: int = 1
    heads: int = 2
    queries: int = 33
    keys: int = 33
    dim: int = 16
    value_dim: int | None = None
    causal: bool = False
    scale: float | None = None
    inputs: str = "normal"
    values: str = "normal"
    layout: str = "contiguous"
    directions: float | None = None
    every: int = 1

    @property
    def scaled_by(self) -> float:
        """The scale, 1/√dim where none is given."""
        return float(self.dim**-0.5 if self.scale is None else self.scale)

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads."""
        return self.batch * self.heads * self.queries * self.keys
