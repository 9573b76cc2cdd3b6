"""The exact results: attention and its gradients in float64, in blocks of query rows.

The formulas are those of `attnlab.workload.inputs`; gradients follow by the chain rule. One head at a time is held in
float64. Small heads share a block, because every block, even a small one, takes a dozen calls or more.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Given, Place
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import Array

#: elements of one (query rows × keys) block of float64; about six such arrays exist at once
_BLOCK = 1 << 20
#: elements up to which heads and batches share a block, so that it fits into the cache
_SHARED = 1 << 16


def finite(inputs: Inputs) -> Inputs:
    """Return `inputs`. Raises ValueError if an array holds a NaN or an infinity."""
    for name in ("query", "key", "value", "output_gradient"):
        array = getattr(inputs, name)
        if array is not None and not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return inputs


def chosen_rows(rows: ArrayLike | None, queries: int) -> NDArray[np.intp]:
    """The indexes of the query rows, all for None. Raises ValueError if one is out of range."""
    if rows is None:
        return np.arange(queries)
    index = np.asarray(rows)
    if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu":
        raise ValueError(f"rows must be a list of indexes, got shape {index.shape} of {index.dtype}")
    if index.min() < 0 or index.max() >= queries:
        raise ValueError(f"rows must lie in 0..{queries - 1}, got {index.min()}..{index.max()}")
    return index.astype(np.intp)


def at_rows(inputs: Inputs, rows: ArrayLike | None) -> Inputs:
    """`inputs` with only these query rows, in this order; all for None. ValueError for an index out of range."""
    index = chosen_rows(rows, inputs.shape.queries)
    if np.array_equal(index, np.arange(inputs.shape.queries)):
        return inputs
    place = Place(inputs.shape, index, np.arange(inputs.shape.keys))
    seen, gradient = inputs.mask.visible(place), inputs.output_gradient
    return inputs.with_(
        query=inputs.query[:, :, index],
        mask=Mask() if seen is None else Mask((Given(seen),)),
        bias=_bias_at(inputs, place),
        output_gradient=None if gradient is None else gradient[:, :, index],
    )


def pulled_rows(inputs: Inputs) -> NDArray[np.intp]:
    """The query rows whose output gradient is not 0; the first row if there are none.

    Only these rows contribute to gradients. Raises ValueError without an output gradient, and for NaN and infinity.
    """
    if inputs.output_gradient is None:
        raise ValueError("the inputs must have an output_gradient, got None; Inputs.of takes it")
    rows = np.flatnonzero(finite(inputs).output_gradient.any(axis=(0, 1, 3)))  # type: ignore[union-attr]
    return rows if rows.size else np.zeros(1, np.intp)


def _bias_at(inputs: Inputs, place: Place) -> NDArray[Any] | None:
    """The tile `place` of the bias, broadcastable to (batches, heads, rows, columns)."""
    if isinstance(inputs.bias, Alibi):
        return inputs.bias.at(place)
    return None if inputs.bias is None else place.cut(inputs.bias)


class Rows:
    """A block of query rows of one or several heads, with all their keys, and their softmax.

    Arrays are (batches, heads, length, dim). k and v are repeated for every query head; `onto_keys` adds up the query
    heads of a key head. A sink is the last key, see `Inputs.without_sinks`.

    at : the slices of batches, heads and rows in the result. at_keys : the slices of batches and key heads.
    visible, bias : broadcastable to (…, rows, keys); None if all keys are seen, or if there is no bias.
    raw : x = scale q·k. capped : f(x) = c tanh(x/c), or x itself without a soft cap. slope : f', None if it is 1.
    scores : f(x) + bias. fall : s − m, 0 at masked keys. top : m, (…, rows, 1), 0 in a row that sees no key.
    partition : l = Σ e^{s − m}, (…, rows, 1). weights, output : 0 in rows that see no key.
    """

    def __init__(self, inputs: Inputs, at: tuple[slice, slice, slice], key: Array, value: Array) -> None:
        self.at, group, n = at, inputs.group, inputs.shape.keys
        self.at_keys = (at[0], slice(at[1].start // group, (at[1].stop - 1) // group + 1))
        place = Place(inputs.shape, np.arange(at[2].start, at[2].stop), np.arange(n), *at[:2])
        bias, seen = _bias_at(inputs, place), inputs.mask.visible(place)
        self.bias = None if bias is None else bias.astype(np.float64)
        self.visible = seen
        if seen is not None:  # the last two axes in full, so that keys can be counted
            self.visible = np.broadcast_to(seen, (*seen.shape[:-2], at[2].stop - at[2].start, n))
        self.q, self.k, self.v = inputs.query[at].astype(np.float64), key, value
        self.scale, self.softcap = inputs.scale, inputs.softcap
        self.raw = self.q @ key.mT * self.scale
        self.capped, self.slope = self.raw, None
        if self.softcap is not None:
            self.capped = self.softcap * np.tanh(self.raw / self.softcap)
            # 1 − tanh²(x/c), without its cancellation for large x
            fade = np.exp(-2 * np.abs(self.raw) / self.softcap)
            self.slope = 4 * fade / (1 + fade) ** 2
        self.scores = self.capped if self.bias is None else self.capped + self.bias
        shown: Any = True if self.visible is None else self.visible
        top = np.max(self.scores, axis=-1, keepdims=True, where=shown, initial=-math.inf)
        self.top = np.where(np.isfinite(top), top, 0.0)
        self.fall = np.where(shown, self.scores - self.top, 0.0)
        boltzmann = np.where(shown, np.exp(self.fall), 0.0)
        self.partition = boltzmann.sum(axis=-1, keepdims=True)
        self.weights = boltzmann / np.where(self.partition > 0, self.partition, 1.0)
        self.output = self.weights @ value

    @cached_property
    def squared_products(self) -> Array:
        """scale² Σ_c q_c²k_jc², (…, rows, keys)."""
        return np.asarray((self.q * self.q) @ (self.k * self.k).mT * self.scale**2)

    @property
    def seen(self) -> Array | float:
        """The number of keys that each row sees, (…, rows, 1)."""
        return float(self.k.shape[-2]) if self.visible is None else self.visible.sum(axis=-1, keepdims=True)

    def through(self, x: Array, power: int = 1) -> Array:
        """x f'^power: how a change of a raw score, or a gradient in the backward pass, passes the soft cap."""
        return x if self.slope is None else x * self.slope**power

    @property
    def curvature(self) -> Array:
        """f''(x) = −2 f f'/c²; 0 without a soft cap."""
        return np.zeros(1) if self.softcap is None else self.through(-2 / self.softcap**2 * self.capped)

    @property
    def scale_response(self) -> Array:
        """ds/d ln(scale) minus its mean over the weights, (…, rows, keys)."""
        moved = self.through(self.raw)
        return np.asarray(moved - (self.weights * moved).sum(axis=-1, keepdims=True))

    def onto_keys(self, x: Array) -> Array:
        """The sums of x, (batches, heads, ...), over the query heads of each key head: (batches, key heads, ...)."""
        key_heads = self.at_keys[1].stop - self.at_keys[1].start
        return x.reshape(x.shape[0], key_heads, -1, *x.shape[2:]).sum(axis=2)  # type: ignore[no-any-return]

    @property
    def extremes(self) -> tuple[Array, Array]:
        """The least and the greatest value of each component, 0 in rows that see no key: (…, rows, value_dim)."""
        least, most = (f(self.v, axis=-2, keepdims=True) for f in (np.min, np.max))
        some = self.partition > 0
        return np.where(some, least, 0.0), np.where(some, most, 0.0)


def blocks(inputs: Inputs) -> Iterator[Rows]:
    """Every block of query rows. Small heads share a block; other heads have blocks of their own."""
    inputs = inputs.without_sinks()
    (batch, heads, queries, n), group = inputs.shape, inputs.group
    # a block has all query heads of one or more key heads, or a single query head
    fit = max(1, _SHARED // (queries * n)) // group * group or 1
    batches, members = max(1, fit // heads), min(fit, heads)
    for b, h in itertools.product(range(0, batch, batches), range(0, heads, members)):
        these = slice(b, min(b + batches, batch)), slice(h, min(h + members, heads))
        at_keys = (these[0], slice(h // group, (these[1].stop - 1) // group + 1))
        # only these heads are converted: all inputs in float64 would take two to four times their memory
        key, value = inputs.key[at_keys].astype(np.float64), inputs.value[at_keys].astype(np.float64)
        own = these[1].stop - h
        if key.shape[1] != own:
            key, value = (np.repeat(one, own // key.shape[1], axis=1) for one in (key, value))
        size = max(1, _BLOCK // (n * key.shape[0] * own))
        for start in range(0, queries, size):
            yield Rows(inputs, (*these, slice(start, min(start + size, queries))), key, value)


class Backward:
    """The terms of the chain rule for one block of query rows.

    g : the output's gradient, (…, rows, value_dim). products : A = g vᵀ. offset : D = Σ p A, (…, rows, 1).
    slopes : T = P ∘ (A − D). raw_slopes : R = T f'.
    """

    def __init__(self, rows: Rows, output_gradient: NDArray[np.floating]) -> None:
        self.rows, self.g = rows, output_gradient[rows.at].astype(np.float64)
        self.products = self.g @ rows.v.mT
        self.offset = (rows.weights * self.products).sum(axis=-1, keepdims=True)
        self.slopes = rows.weights * (self.products - self.offset)
        self.raw_slopes = rows.through(self.slopes)

    @property
    def gradients(self) -> tuple[Array, Array, Array]:
        """The gradient of the query, (…, rows, head_dim), and this block's part of those of key and value."""
        rows, scaled = self.rows, self.rows.scale * self.raw_slopes
        return scaled @ rows.k, scaled.mT @ rows.q, rows.weights.mT @ self.g

    @property
    def tilts(self) -> tuple[Array, Array, Array]:
        """d gradients / d ln(scale): dP = P ∘ (ds − Σ P ds) with ds = f' x, and so on through D, T and R."""
        rows, p, response = self.rows, self.rows.weights, self.rows.scale_response
        offset = (self.slopes * response).sum(axis=-1, keepdims=True)
        moved = rows.through(self.slopes * response - p * offset) + self.slopes * rows.curvature * rows.raw
        moved = rows.scale * (moved + self.raw_slopes)
        return moved @ rows.k, moved.mT @ rows.q, (p * response).mT @ self.g
