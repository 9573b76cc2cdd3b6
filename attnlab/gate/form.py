"""One condition of the gate before its arrays are drawn, and the line of text that says it.

``normal: b2 h3 n65x67 d16`` are two batch elements, three heads, 65 queries, 67 keys and a head_dim of 16;
``h8/2`` are two heads of key and value, ``d24v8`` a value_dim of 8. What follows is ``field=value``, or a field
alone where that is yes or no. The tables of `attnlab.gate.forms` are written so, a fault is told so, and
`Form.parse` reads it again: a condition that was drawn at random can be repeated from the message that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.gate import exact_inputs
from attnlab.problem.mask_parts import Given, Shape
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi

#: share of pairs that a drawn boolean array keeps, and of those that a bias with infinities hides
_KEPT, _HIDDEN = 0.6, 0.2
#: fields that are whole numbers
_WHOLE = ("every", "draw", "splits")
#: in an array that is to have rows that see no key, every so many do
_EMPTY_ROWS = 7


@dataclass(frozen=True, kw_only=True)
class Form:
    """One condition. Names of inputs and layouts have _ for spaces.

    mask : as `Mask.parse` reads it. array : axes of a boolean array, of ``bhqk``, 1 where it is broadcast; a ``-`` at
    the end for rows that see no key. bias : "alibi", or axes as for `array`; with ``-`` some of it is -inf. inputs :
    a distribution or a construction of `hard_inputs` and `exact_inputs`. values : "normal", "ones" (rows must sum to
    1), "keys" (V = K). layout, gradient_layout : how the arrays lie in memory, see `attnlab.race.probe`.
    upstream : what the output's gradient is, where gradients are asked for. z, gradient_z : standard errors beyond
    which a gain or a wrong scale is told, None where it is not looked for; it needs some hundred rows, or heads for
    gradients, that are not saturated. exact_gradients : nothing is rounded on the way back but the gradients
    themselves. every : judge every so many rows, and the last; all are asked for. draw : another for other numbers of
    the same form. log_sum : ln Z is asked for too. splits : parts that the keys are cut into.
    """

    name: str
    batch: int = 1
    heads: int = 2
    kv_heads: int | None = None
    queries: int = 33
    keys: int = 33
    dim: int = 16
    value_dim: int | None = None
    mask: str = ""
    array: str = ""
    bias: str = ""
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None
    inputs: str = "normal"
    values: str = "normal"
    layout: str = "contiguous"
    upstream: str = ""
    gradient_layout: str = "contiguous"
    z: float | None = None
    gradient_z: float | None = None
    exact_gradients: bool = False
    every: int = 1
    draw: int = 0
    log_sum: bool = False
    splits: int = 1

    def __post_init__(self) -> None:
        for name, usual in (("kv_heads", self.heads), ("value_dim", self.dim)):
            if getattr(self, name) == usual:
                object.__setattr__(self, name, None)

    @classmethod
    def parse(cls, line: str) -> Form:
        """From its text. Raises ValueError for what is none."""
        name, _, rest = line.strip().rpartition(": ")
        given: dict[str, Any] = {"name": name}
        known = {field.name for field in fields(cls)}
        for word in rest.split():
            key, equals, value = word.partition("=")
            sizes = re.fullmatch(r"b(\d+)|h(\d+)(?:/(\d+))?|n(\d+)(?:x(\d+))?|d(\d+)(?:v(\d+))?", word)
            if sizes:
                b, h, kv, n, m, d, v = (None if one is None else int(one) for one in sizes.groups())
                found = {"batch": b, "heads": h, "kv_heads": kv, "queries": n, "dim": d, "value_dim": v}
                given |= {field: size for field, size in found.items() if size is not None}
                if n is not None:
                    given["keys"] = n if m is None else m
            elif word == "causal":
                given["mask"] = "causal(top_left)"
            elif key in known and not equals:
                given[key] = True
            elif key in known:
                number = re.fullmatch(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?", value)
                given[key] = (int(value) if key in _WHOLE else float(value)) if number else value
            else:
                raise ValueError(f"a condition has no {word!r}: {line.strip()}")
        return cls(**given)

    @property
    def text(self) -> str:
        """What `parse` reads, but for the name."""
        heads = f"h{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads not in (None, self.heads) else "")
        length = f"n{self.queries}" + (f"x{self.keys}" if self.keys != self.queries else "")
        dim = f"d{self.dim}" + (f"v{self.value_dim}" if self.value_dim not in (None, self.dim) else "")
        words = [f"b{self.batch}", heads, length, dim]
        for field in fields(self)[8:]:
            value = getattr(self, field.name)
            if field.name == "mask" and value == "causal(top_left)":
                words.append("causal")
            elif value != field.default:
                written = repr(value) if isinstance(value, float) else str(value).replace(" ", "")
                words.append(field.name if value is True else f"{field.name}={written}")
        return " ".join(words)

    @property
    def scaled_by(self) -> float:
        """The scale, 1/√dim where none is given."""
        return float(self.dim**-0.5 if self.scale is None else self.scale)

    @property
    def shape(self) -> Shape:
        """Of the score matrix."""
        return Shape(self.batch, self.heads, self.queries, self.keys)

    @property
    def exact(self) -> bool:
        """Whether nothing but the output is rounded."""
        return self.inputs in exact_inputs.CONSTRUCTIONS and self.softcap is None and not self.sinks

    def masked(self, rng: np.random.Generator) -> Mask:
        """Its mask, with the boolean array that it has drawn anew."""
        found = Mask.parse(self.mask.replace("&", " & "))
        if not self.array:
            return found
        axes = self.array.rstrip("-")
        seen = rng.random(self._sizes(axes)) < _KEPT
        if self.array.endswith("-"):
            seen[..., ::_EMPTY_ROWS, :] = False
        return found & Mask((Given(seen),))

    def biased(self, rng: np.random.Generator) -> Alibi | NDArray[np.float64] | None:
        """Its bias: ALiBi, or a standard normal array."""
        if not self.bias:
            return None
        if self.bias == "alibi":
            return Alibi.of_heads(self.heads)
        added = rng.standard_normal(self._sizes(self.bias.rstrip("-")))
        if self.bias.endswith("-"):
            added[rng.random(added.shape) < _HIDDEN] = -np.inf
        return added

    def _sizes(self, axes: str) -> tuple[int, ...]:
        sizes = dict(zip("bhqk", self.shape, strict=True)) | {"1": 1}
        return tuple(sizes[axis] for axis in axes)


def read(table: str) -> tuple[Form, ...]:
    """A table of forms, one a line."""
    return tuple(Form.parse(line) for line in table.splitlines() if line.strip())
