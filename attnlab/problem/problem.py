"""One question of attention with its arrays: what a backend, the reference, the gate, theory and `observe` take.

    s_ij = softcap(scale · q_i·k_j) + bias_ij,   softcap(s) = c tanh(s/c)
    p_ij = e^{s_ij} / (Σ_l e^{s_il} + e^{sink}),   over the keys l that the mask lets query i see
    o_i  = Σ_j p_ij v_j

A query that sees no key gets the output 0. The cap comes before the bias and the mask, as in Gemma 2 and in the
ONNX operator; a sink is one learned logit a head that takes part in the sum and has no value (GPT-OSS).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.problem.block import Block
from attnlab.problem.dtypes import round_to
from attnlab.problem.mask_kinds import Causal, Given, KeyLengths, Window
from attnlab.problem.mask_part import Shape, broadcastable
from attnlab.problem.masks import EVERYTHING, Mask


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases: −slope_h · |i − j| is added to the scores of head h (Press et al. 2022).

    slopes : one a head, positive; `of_heads` gives the paper's for a power of two of heads, 2^(−8(h+1)/heads).
    Positions are counted from the last query and the last key, so that decoding goes on where prefill ended.
    """

    slopes: tuple[float, ...]

    @classmethod
    def of_heads(cls, heads: int) -> Alibi:
        """The default slopes of so many heads."""
        return cls(tuple(2.0 ** (-8 * (head + 1) / heads) for head in range(heads)))

    def array(self, shape: Shape) -> NDArray[np.float64]:
        """(1, heads, queries, keys)."""
        own = np.arange(shape.queries)[:, None] + shape.keys - shape.queries
        return np.asarray(-np.asarray(self.slopes)[None, :, None, None] * np.abs(own - np.arange(shape.keys)))


@dataclass(frozen=True, eq=False)
class Problem:
    """Arrays in NumPy, holding values of `dtype` exactly (bfloat16 in float32), and what is asked of them.

    query : (batch, heads, queries, head_dim). key : (batch, kv_heads, keys, head_dim). value : (batch, kv_heads, keys,
    value_dim). heads is a multiple of kv_heads; each key head serves heads/kv_heads successive query heads.
    bias : numbers of `dtype` or wider, broadcastable to (batch, heads, queries, keys), finite; or ALiBi.
    softcap : c > 0. sinks : (heads,). output_gradient : ∂L/∂o, (batch, heads, queries, value_dim).
    block : the multi-head block around it, where there is one: query, key and value are NaN then, since they are what
    its projections make, and the answer is the block's.

    Made by `of`, which checks all that. Soft cap and scale are plain numbers.
    """

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    dtype: str
    scale: float
    mask: Mask = EVERYTHING
    bias: NDArray[Any] | Alibi | None = None
    softcap: float | None = None
    sinks: NDArray[Any] | None = None
    output_gradient: NDArray[Any] | None = None
    block: Block | None = None

    @classmethod
    def of(
        cls,
        query: ArrayLike,
        key: ArrayLike,
        value: ArrayLike,
        *,
        causal: bool | str = False,
        mask: Mask | ArrayLike | str | None = None,
        bias: ArrayLike | Alibi | None = None,
        window: Any = None,
        key_lengths: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: ArrayLike | None = None,
        output_gradient: ArrayLike | None = None,
        dtype: str | None = None,
    ) -> Problem:
        """The problem that these arrays pose.

        causal : True or "top_left", "bottom_right", or False. window : (left, right) keys around a query's own place,
        -1 for no limit, counted along the causal diagonal (top-left where not causal). key_lengths : keys that are
        there, one number a batch element. mask : a boolean array, True keeps; a `Mask`; or its text. All of them
        intersect. bias : -inf masks its pair. scale : 1/√head_dim by default. dtype : the query's unless given.

        Raises ValueError, in one line, for whatever does not fit.
        """
        arrays = {"query": np.asarray(query), "key": np.asarray(key), "value": np.asarray(value)}
        if all(array.dtype.name == "bfloat16" for array in arrays.values()):
            dtype = dtype or "bfloat16"
        arrays = {name: _carried(array) for name, array in arrays.items()}
        shape = _shape_of(arrays)
        q, k, v = arrays.values()
        masked = masked_by(causal=causal, window=window, key_lengths=key_lengths) & Mask.of(mask)  # type: ignore[arg-type]
        added, hidden = _checked_bias(bias, shape)
        if hidden is not None:
            masked = masked & Mask((Given(hidden),))
        masked.check(shape)
        return cls(
            query=q,
            key=k,
            value=v,
            dtype=dtype or str(q.dtype),
            scale=_checked_scale(scale, q.shape[-1]),
            mask=masked,
            bias=added,
            softcap=checked_softcap(softcap),
            sinks=_checked_sinks(sinks, shape),
            output_gradient=_checked_gradient(output_gradient, (*shape[:3], v.shape[-1])),
        )

    @classmethod
    def around(cls, block: Block, **rest: Any) -> Problem:
        """The problem of a multi-head block, `rest` as for `of`. Raises ValueError for whatever does not fit."""
        return cls.of(*block.unknown(), **rest).with_(block=block)

    @property
    def shape(self) -> Shape:
        """Of the score matrix: batch, heads, queries, keys."""
        batch, heads, queries = self.query.shape[:3]
        return Shape(batch, heads, queries, self.key.shape[2])

    @property
    def kv_heads(self) -> int:
        """Heads of key and value."""
        return int(self.key.shape[1])

    @property
    def group(self) -> int:
        """Query heads that share one head of key and value."""
        return self.shape.heads // self.kv_heads

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, value_dim)."""
        return (*self.query.shape[:3], int(self.value.shape[-1]))

    @property
    def bias_array(self) -> NDArray[Any] | None:
        """The bias as an array, broadcastable to the scores, or None."""
        return self.bias.array(self.shape) if isinstance(self.bias, Alibi) else self.bias

    @property
    def plain(self) -> bool:
        """Whether it is softmax(scale · q kᵀ) v with a mask and nothing more."""
        return self.bias is None and self.softcap is None and self.sinks is None

    def with_(self, **changes: Any) -> Problem:
        """A copy with these attributes changed; nothing is checked again."""
        return replace(self, **changes)

    def cast(self, dtype: str) -> Problem:
        """The same question in another number format, its arrays rounded to that."""
        arrays = {
            name: round_to(array, dtype)
            for name in ("query", "key", "value", "bias", "sinks", "output_gradient")
            if isinstance(array := getattr(self, name), np.ndarray)
        }
        return self.with_(dtype=dtype, **arrays)

    def without_sinks(self) -> Problem:
        """The same answer to a problem without sinks: a sink is one more key 0 with the value 0 and the sink for bias.

        The key comes last and no mask hides it. Gradients of key and value have one row more, to be left out.
        """
        if self.sinks is None:
            return self
        shape = self.shape
        wider = shape._replace(keys=shape.keys + 1)
        seen = self.mask.array(shape)
        mask = EVERYTHING
        if seen is not None:
            seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
            full = np.ones((*np.broadcast_shapes(seen.shape[:3], (1, 1, shape.queries)), wider.keys), bool)
            full[..., : shape.keys] = seen
            mask = Mask((Given(full),))
        given = self.bias_array
        added = (
            np.zeros((1, shape.heads, 1, 1))
            if given is None
            else given.reshape((1,) * (4 - given.ndim) + given.shape)
        )
        lead = np.broadcast_shapes(added.shape[:3], (1, shape.heads, 1))
        bias = np.empty((*lead, wider.keys))
        bias[..., : shape.keys] = added
        bias[..., shape.keys] = np.asarray(self.sinks, np.float64)[None, :, None]
        zero = [np.zeros_like(one[:, :, :1]) for one in (self.key, self.value)]
        key, value = (
            np.concatenate([one, row], axis=2) for one, row in zip((self.key, self.value), zero, strict=True)
        )
        return replace(self, key=key, value=value, mask=mask, bias=bias, sinks=None)


def masked_by(*, causal: bool | str = False, window: Any = None, key_lengths: Any = None) -> Mask:
    """The mask of the three conditions that have a keyword of their own. Raises ValueError for what they are not."""
    parts: list[Any] = []
    alignment = "top_left"
    if causal is not False and causal is not None:
        alignment = "top_left" if causal is True else str(causal)
        parts.append(Causal(alignment))
    if window is not None:
        parts.append(Window.of(window, alignment))
    if key_lengths is not None:
        lengths = np.asarray(key_lengths)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
            raise ValueError(f"key_lengths must be whole numbers, one a batch element, got {key_lengths!r}")
        parts.append(KeyLengths(tuple(int(one) for one in lengths)))
    return Mask(tuple(parts))


def _carried(array: NDArray[Any]) -> NDArray[Any]:
    """bfloat16 as ml_dtypes has it in float32, which holds it exactly; anything else as it is."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _shape_of(arrays: dict[str, NDArray[Any]]) -> Shape:
    """The score matrix's shape. Raises ValueError where the arrays do not fit each other."""
    for name, array in arrays.items():
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"{name} must be a non-empty array of shape (batch, heads, length, dim), got {array.shape}"
            )
        if array.dtype.kind != "f":
            raise ValueError(f"{name} must hold floating-point numbers, got {array.dtype}")
    query, key, value = arrays.values()
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"query, key and value must share one dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query and key must have the same head_dim, got {query.shape[-1]} and {key.shape[-1]}"
        )
    if key.shape[2] != value.shape[2]:
        raise ValueError(f"key and value must have the same length, got {key.shape[2]} and {value.shape[2]}")
    if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0]:
        raise ValueError(
            "query, key and value must agree in batch, and key and value in heads, got "
            f"{query.shape[:2]}, {key.shape[:2]}, {value.shape[:2]}"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            "batch and heads must agree, or the key's heads divide the query's, "
            f"got {query.shape[1]} heads and {key.shape[1]} kv_heads"
        )
    batch, heads, queries = query.shape[:3]
    return Shape(batch, heads, queries, key.shape[2])


def _checked_bias(bias: ArrayLike | Alibi | None, shape: Shape) -> tuple[Any, NDArray[np.bool_] | None]:
    """The bias with 0 where it was -inf, and True where it was not -inf if it was anywhere."""
    if bias is None:
        return None, None
    if isinstance(bias, Alibi):
        if len(bias.slopes) != shape.heads:
            raise ValueError(f"ALiBi needs one slope a head, {shape.heads}, got {len(bias.slopes)}")
        return bias, None
    added = _carried(np.asarray(bias))
    if added.dtype.kind != "f":
        raise ValueError(
            f"bias must hold floating-point numbers that are added to the scores, got {added.dtype}; "
            "give a boolean array as mask"
        )
    broadcastable("bias", added, shape)
    hidden = np.isneginf(added)
    if not np.isfinite(added[~hidden]).all():
        raise ValueError("bias must be finite, or -inf where a pair is masked, got a NaN or +inf")
    return (np.where(hidden, added.dtype.type(0), added), ~hidden) if hidden.any() else (added, None)


def _checked_scale(scale: float | None, head_dim: int) -> float:
    if scale is None:
        return 1 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.number) or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number or None, got {scale!r}")
    return float(scale)


def checked_softcap(softcap: float | None) -> float | None:
    """The cap as a float, or None. Raises ValueError for what is no number above 0."""
    if softcap is None:
        return None
    if (
        isinstance(softcap, bool)
        or not isinstance(softcap, int | float | np.number)
        or not 0 < softcap < math.inf
    ):
        raise ValueError(f"softcap must be a number above 0, or None for no cap, got {softcap!r}")
    return float(softcap)


def _checked_sinks(sinks: ArrayLike | None, shape: Shape) -> NDArray[Any] | None:
    if sinks is None:
        return None
    found = _carried(np.asarray(sinks))
    if found.shape != (shape.heads,) or found.dtype.kind != "f" or not np.isfinite(found).all():
        raise ValueError(
            f"sinks must be one finite number a head, shape ({shape.heads},), got {found.dtype} of shape {found.shape}"
        )
    return found


def _checked_gradient(gradient: ArrayLike | None, expected: tuple[int, ...]) -> NDArray[Any] | None:
    if gradient is None:
        return None
    found = _carried(np.asarray(gradient))
    if found.shape != expected:
        raise ValueError(f"output_gradient must have the output's shape {expected}, got {found.shape}")
    if found.dtype.kind != "f" or not np.isfinite(found).all():
        raise ValueError("output_gradient must be finite, got a NaN or an infinity")
    return found
