"""A model against itself at its initialisation: what of its attention is not the architecture's and the text's.

Positions, repeated tokens and the architecture make logits dependent before any training does. Two controls of the same
architecture, with random weights of several seeds, on the same texts: as it is drawn, and with the queries of every
head multiplied so that its β is that of the trained head. At the small β of the first nearly any logits have the
entropy of independent ones; the second departs from chance as far as dependence alone makes it at that β.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.lab.capture import Call
from attnlab.lab.heads import Head, heads_of

Heads = Sequence[Head]

DRAWN, ALIKE = "untrained", "untrained, spread alike"
BEYOND, DISTANCE, FIRST = (
    "heads beyond the freezing line",
    "distance of H from chance, nats, median over heads",
    "weight on the first token, mean over heads",
)
_ANY: Mapping[str, Callable[[Heads], float]] = {
    "‖J‖, median over heads": lambda heads: statistics.median(one.jacobian_norm for one in heads),
    FIRST: lambda heads: statistics.fmean(one.first for one in heads),
}
#: what is compared, one number a model and text, by the control that it says something beside
QUANTITIES: Mapping[str, Mapping[str, Callable[[Heads], float]]] = {
    DRAWN: {
        BEYOND: lambda heads: sum(one.beyond for one in heads),
        "β, median over heads": lambda heads: statistics.median(one.beta for one in heads),
        **_ANY,
    },
    ALIKE: {
        DISTANCE: lambda heads: statistics.median(abs(one.departure) for one in heads),
        "heads sharper than chance": lambda heads: sum(one.departure < 0 for one in heads),
        **_ANY,
    },
}


@dataclass(frozen=True)
class Compared:
    """One quantity of the trained model and of a control, means over texts, of a control over seeds too.

    difference : trained less control. The errors are standard errors: over texts, those of the control and of the
    difference, which pairs texts, over seeds too; `nan` for one text or one seed.
    """

    quantity: str
    control: str
    trained: float
    trained_error: float
    untrained: float
    untrained_error: float
    difference: float
    difference_error: float

    @property
    def errors_apart(self) -> float:
        """The difference in its standard errors; `nan` without one."""
        return self.difference / self.difference_error if self.difference_error > 0 else math.nan


def spread_alike(calls: Sequence[Call], trained: Heads, own: Heads) -> list[Call]:
    """The calls with queries so much longer that each head's β, now that of `own`, is that of `trained`."""
    found = []
    for layer, call in enumerate(calls):
        wanted, there = ([one.beta for one in heads if one.layer == layer] for heads in (trained, own))
        factor = np.array([a / b if b else 1.0 for a, b in zip(wanted, there, strict=True)])
        query = call.problem.query * factor[None, :, None, None]
        found.append(Call(call.module, call.problem.with_(query=query.astype(query.dtype)), call.answer))
    return found


def all_heads(calls: Sequence[Call], separators: Sequence[int]) -> list[Head]:
    """Of every layer; separators : positions of special tokens."""
    return [
        head
        for layer, call in enumerate(calls)
        for head in heads_of(layer, call.problem, [at for at in separators if at < call.problem.shape.keys])
    ]


def compared(trained: Sequence[Heads], controls: Mapping[str, Sequence[Sequence[Heads]]]) -> list[Compared]:
    """trained : by text. controls : by name, by seed and text."""
    found = []
    for control, drawn in controls.items():
        for quantity, of in QUANTITIES[control].items():
            own = np.array([of(heads) for heads in trained], float)
            other = np.array([[of(heads) for heads in texts] for texts in drawn], float)
            apart = own - other.mean(axis=0)
            seeds = _squared_error(other.mean(axis=1))
            errors = (
                _squared_error(own),
                _squared_error(other.mean(axis=0)) + seeds,
                _squared_error(apart) + seeds,
            )
            mine, its, between = map(math.sqrt, errors)
            mean = float(other.mean())
            found.append(
                Compared(quantity, control, float(own.mean()), mine, mean, its, float(apart.mean()), between)
            )
    return found


def _squared_error(x: Any) -> float:
    """Of a mean: the variance over the count."""
    return float(np.var(x, ddof=1) / len(x)) if len(x) > 1 else math.nan
