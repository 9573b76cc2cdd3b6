"""Attention as `attnlab.workload.inputs` says, and its gradients by the chain rule, in float64, in blocks of rows.

This is the truth that errors are measured against. One head at a time is held in float64, or as many as are small:
what is done to a block costs some dozen calls however little is in it.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.correctness.numbers import Array
from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Given, Place
from attnlab.workload.masks import Mask

# Elements of one (query rows × keys) block of float64; some six such blocks are alive at once.
_BLOCK = 1 << 20
# Elements up to which heads and batches share a block: it still lies in cache.
_SHARED = 1 << 16


def finite(inputs: Inputs) -> Inputs:
    """`inputs` if its arrays hold no NaN and no infinity, else ValueError."""
    for name in ("query", "key", "value", "output_gradient"):
        array = getattr(inputs, name)
        if array is not None and not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return inputs


def chosen_rows(rows: ArrayLike | None, queries: int) -> NDArray[np.intp]:
    """The indexes of the query rows, of all if None. Raises ValueError for one out of range."""
    if rows is None:
        return np.arange(queries)
    index = np.asarray(rows)
    if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu":
        raise ValueError(
            f"rows must be a non-empty list of indexes, got shape {index.shape} of {index.dtype}"
        )
    if index.min() < 0 or index.max() >= queries:
        raise ValueError(f"rows must lie in 0..{queries - 1}, got {index.min()}..{index.max()}")
    return index.astype(np.intp)


def at_rows(inputs: Inputs, rows: ArrayLike | None) -> Inputs:
    """What `inputs` asks of these query rows, in this order; all if None. ValueError for an index out of range."""
    if rows is None:
        return inputs
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


def _bias_at(inputs: Inputs, place: Place) -> NDArray[Any] | None:
    """Its tile of the bias, broadcastable to (batches, heads, rows, columns)."""
    if isinstance(inputs.bias, Alibi):
        return inputs.bias.at(place)
    return None if inputs.bias is None else place.cut(inputs.bias)


@dataclass(frozen=True, eq=False)
class Rows:
    """A block of query rows of one or several heads, with all their keys; arrays are (batches, heads, length, dim).

    at : batches, heads and rows, where results belong. at_keys : batches and key heads; k and v stand here once for
    every query head, and `onto_keys` adds up what belongs to one key head. Without sinks: a sink is the
    last of the keys, see `Inputs.without_sinks`.
    """

    at: tuple[slice, slice, slice]
    at_keys: tuple[slice, slice]
    q: Array
    k: Array
    v: Array
    visible: NDArray[np.bool_] | None  # broadcastable to (…, rows, keys), None where all are
    bias: Array | None  # broadcastable to (…, rows, keys)
    scale: float
    softcap: float | None
    sink: bool

    @functools.cached_property
    def squared_products(self) -> Array:
        """scale² Σ_c q_c²k_jc², (…, rows, keys)."""
        return np.asarray((self.q * self.q) @ turned(self.k * self.k) * self.scale**2)

    @property
    def seen(self) -> Array | float:
        """How many keys each row sees, (…, rows, 1)."""
        return float(self.k.shape[-2]) if self.visible is None else self.visible.sum(axis=-1, keepdims=True)

    def onto_keys(self, x: Array) -> Array:
        """The sums of x, (batches, heads, ...), over the heads of a key head: (batches, key heads, ...)."""
        key_heads = self.at_keys[1].stop - self.at_keys[1].start
        if key_heads == x.shape[1]:
            return x
        return np.asarray(x.reshape(x.shape[0], key_heads, -1, *x.shape[2:]).sum(axis=2))


class Softmax(NamedTuple):
    raw: Array  # x = scale q·k
    capped: Array  # f(x) = c tanh(x/c), x itself without a soft cap
    slope: Array | None  # f', None where it is 1
    scores: Array  # f(x) + bias
    weights: Array
    fall: Array  # s − m, 0 at masked keys
    top: Array  # m, (…, rows, 1); 0 where no key is seen
    partition: Array  # Σ e^{s − m}, (…, rows, 1)
    output: Array

    @property
    def log_sum(self) -> Array:
        """ln l, l = Σ e^{s − m}, (…, rows, 1); 0 where no key is seen."""
        return np.log(np.where(self.partition > 0, self.partition, 1.0))

    @property
    def log_partition(self) -> Array:
        """ln Z = m + ln l, (…, rows, 1); 0 where no key is seen."""
        return self.top + self.log_sum

    def through(self, x: Array, power: int = 1) -> Array:
        """x f'^power: how a change of a raw score, or a gradient on its way back, passes the soft cap."""
        return x if self.slope is None else x * self.slope**power

    @property
    def scale_response(self) -> Array:
        """ds/d ln(scale) less its mean over the weights, (…, rows, keys)."""
        moved = self.through(self.raw)
        return np.asarray(moved - (self.weights * moved).sum(axis=-1, keepdims=True))


def softmax_rows(part: Rows) -> Softmax:
    """Scores, weights and output of one block; rows that see no key get weights and output 0."""
    raw = part.q @ turned(part.k) * part.scale
    capped, slope = raw, None
    if part.softcap is not None:
        capped, slope = part.softcap * np.tanh(raw / part.softcap), cap_slope(raw, part.softcap)
    scores = capped if part.bias is None else capped + part.bias
    if part.visible is None:
        top = scores.max(axis=-1, keepdims=True)
        fall = scores - top
        boltzmann = np.exp(fall)
    else:
        top = np.max(scores, axis=-1, keepdims=True, where=part.visible, initial=-math.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        fall = np.where(part.visible, scores - top, 0.0)
        boltzmann = np.where(part.visible, np.exp(fall), 0.0)
    partition = boltzmann.sum(axis=-1, keepdims=True)
    weights = boltzmann / np.where(partition > 0, partition, 1.0)
    return Softmax(raw, capped, slope, scores, weights, fall, top, partition, weights @ part.v)


def cap_slope(x: Array, softcap: float) -> Array:
    """f'(x) = 1 − tanh²(x/c), without the cancellation that this has where the cap binds."""
    fade = np.exp(-2 * np.abs(x) / softcap)
    return np.asarray(4 * fade / (1 + fade) ** 2)


def turned(x: Array) -> Array:
    """The last two axes exchanged."""
    return x.swapaxes(-1, -2)


def blocks(inputs: Inputs) -> Iterator[Rows]:
    """Every block of query rows, with its keys, values and visibility: small heads together, others apart."""
    sink, inputs = inputs.sinks is not None, inputs.without_sinks()
    batch, heads, queries, n = inputs.shape
    group, columns = inputs.group, np.arange(n)
    for batches, members in _together(batch, heads, group, queries * n):
        at_keys = (batches, slice(members.start // group, (members.stop - 1) // group + 1))
        # only these heads in float64: the whole input would double or quadruple its memory
        key, value = inputs.key[at_keys].astype(np.float64), inputs.value[at_keys].astype(np.float64)
        query = inputs.query[batches, members]
        if key.shape[1] != query.shape[1]:
            key, value = (np.repeat(one, query.shape[1] // key.shape[1], axis=1) for one in (key, value))
        size = max(1, _BLOCK // (n * query.shape[0] * query.shape[1]))
        for start in range(0, queries, size):
            at = slice(start, min(start + size, queries))
            place = Place(inputs.shape, np.arange(at.start, at.stop), columns, batches, members)
            bias, seen = _bias_at(inputs, place), inputs.mask.visible(place)
            yield Rows(
                at=(batches, members, at),
                at_keys=at_keys,
                q=query[:, :, at].astype(np.float64),
                k=key,
                v=value,
                # the last two axes whole, so that keys can be counted
                visible=None
                if seen is None
                else np.broadcast_to(seen, (*seen.shape[:-2], at.stop - start, n)),
                bias=None if bias is None else bias.astype(np.float64),
                scale=inputs.scale,
                softcap=inputs.softcap,
                sink=sink,
            )


def _together(batch: int, heads: int, group: int, pairs: int) -> Iterator[tuple[slice, slice]]:
    """Batches and heads that share a block, `pairs` each: all heads of a key head or one of them alone."""
    fit = max(1, _SHARED // pairs)
    fit = fit // group * group or 1
    if fit >= heads:
        step = fit // heads
        for b in range(0, batch, step):
            yield slice(b, min(b + step, batch)), slice(0, heads)
        return
    for b in range(batch):
        for h in range(0, heads, fit):
            yield slice(b, b + 1), slice(h, min(h + fit, heads))


def visible_extremes(part: Rows) -> tuple[Array, Array]:
    """Least and greatest of the values that a row sees, per component; 0 where it sees none. (…, rows, value_dim)."""
    visible, shape = part.visible, (*part.q.shape[:3], part.v.shape[-1])
    if visible is None:
        least, most = (np.broadcast_to(f(part.v, axis=-2, keepdims=True), shape) for f in (np.min, np.max))
        return least, most
    some, found = visible.any(axis=-1, keepdims=True), []
    for sign in (1, -1):
        components = (sign * part.v[..., None, :, at] for at in range(shape[-1]))
        least = np.stack([np.where(visible, one, np.inf).min(axis=-1) for one in components], axis=-1)
        found.append(np.where(some, np.broadcast_to(sign * least, shape), 0.0))
    return found[0], found[1]


Three = tuple[Array, Array, Array]


@dataclass(frozen=True, eq=False)
class Backward:
    """What the chain rule meets on its way back through one block of query rows."""

    part: Rows
    soft: Softmax
    g: Array  # (…, rows, value_dim)
    products: Array  # A, (…, rows, keys)
    offset: Array  # D, (…, rows, 1)
    slopes: Array  # T, (…, rows, keys)
    raw_slopes: Array  # R, (…, rows, keys)

    @functools.cached_property
    def fall(self) -> Array:
        """s − m, (…, rows, keys); −inf at masked keys."""
        visible = self.part.visible
        return self.soft.fall if visible is None else np.where(visible, self.soft.fall, -np.inf)

    @functools.cached_property
    def highest(self) -> tuple[Array, Array]:
        """The largest of `fall` among the keys up to each, and among those from each on."""
        before = np.maximum.accumulate(self.fall, axis=-1)
        return before, np.maximum.accumulate(self.fall[..., ::-1], axis=-1)[..., ::-1]

    @property
    def gradients(self) -> Three:
        """Of query, (…, rows, head_dim), and this block's share of those of key and value."""
        return (
            self.part.scale * self.raw_slopes @ self.part.k,
            self.part.scale * turned(self.raw_slopes) @ self.part.q,
            turned(self.soft.weights) @ self.g,
        )

    @property
    def tilts(self) -> Three:
        """d gradients / d ln(scale): dP = P ∘ (ds − Σ P ds) with ds = f' x, and so on through D, T and R."""
        p, scale, response = self.soft.weights, self.part.scale, self.soft.scale_response
        offset = (self.slopes * response).sum(axis=-1, keepdims=True)
        moved = self.soft.through(self.slopes * response - p * offset)
        if self.part.softcap is not None:
            moved += self.slopes * cap_curvature(self.part, self.soft) * self.soft.raw
        moved += self.raw_slopes
        return (
            scale * moved @ self.part.k,
            scale * turned(moved) @ self.part.q,
            turned(p * response) @ self.g,
        )


def cap_curvature(part: Rows, soft: Softmax) -> Array:
    """f''(x) = −2 f f'/c²; 0 without a soft cap."""
    if part.softcap is None:
        return np.zeros(1)
    return soft.through(-2 / part.softcap**2 * soft.capped)


def backward_rows(part: Rows, output_gradient: NDArray[np.floating]) -> Backward:
    """The way back through `part`; `output_gradient` is the whole (batch, heads, queries, value_dim)."""
    soft = softmax_rows(part)
    g = output_gradient[part.at].astype(np.float64)
    products = g @ turned(part.v)
    offset = (soft.weights * products).sum(axis=-1, keepdims=True)
    slopes = soft.weights * (products - offset)
    return Backward(part, soft, g, products, offset, slopes, soft.through(slopes))


def pulled_rows(inputs: Inputs) -> NDArray[np.intp]:
    """The query rows whose output has a gradient: only they have part in any other. The first, where none has one.

    Raises ValueError without a gradient, and for NaN and infinity.
    """
    if inputs.output_gradient is None:
        raise ValueError("the inputs must have an output_gradient, got None; Inputs.of takes it")
    rows = np.flatnonzero(finite(inputs).output_gradient.any(axis=(0, 1, 3)))  # type: ignore[union-attr]
    return rows if rows.size else np.zeros(1, np.intp)
