"""The arrays of one question of attention (`Inputs`), and of a multi-head block (`Block`), checked when they are made.

Backends, the reference, the check, theory and `observe` use them.

    s_ij = softcap(scale · q_i·k_j) + bias_ij,   softcap(s) = c tanh(s/c)
    p_ij = e^{s_ij} / (Σ_l e^{s_il} + e^{sink}),   over the keys l that the mask lets query i see
    o_i  = Σ_j p_ij v_j

A query that sees no key gets the output 0. The cap comes before the bias and the mask, as in Gemma 2 and in the ONNX
operator. A sink is one learned logit for each head; it is a term of the sum but has no value (GPT-OSS).

A multi-head block projects x to the queries, and a memory m (x itself if there is none) to keys and values:

    q = x W_Qᵀ + b_Q,  k = m W_Kᵀ + b_K,  v = m W_Vᵀ + b_V
    y = concatenation over heads of attention(q_h, k_h, v_h) W_Oᵀ + b_O

(Vaswani et al. 2017, section 3.2.2). The parameters are those of `torch.nn.MultiheadAttention`, with the same names:
the rows of in_proj_weight are those of W_Q, then W_K, then W_V, and within each of them head by head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import Declined, FieldError
from attnlab.workload.mask_kinds import Given, Place, Shape, broadcastable
from attnlab.workload.masks import EVERYTHING, Mask, masked_by
from attnlab.workload.number_formats import dtype_of, floating, round_to

_INPUTS = ("query", "key", "value")
_FURTHER = ("bias", "sinks", "output_gradient")
#: the names of the parameters in a state dict
PARAMETERS = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
#: how a contender may compute the projections of a block
PROJECTIONS = ("fused", "loop")
#: the largest scale and soft cap; a lower bound of soft caps: results that contain their squares stay finite
_MOST_FACTOR, LEAST_CAP = 1e30, 1e-30
#: the largest size: a mask is counted over up to this many positions
_MOST_SIZE = 2**24
#: sizes whose default is another size
_LIKE = {"kv_heads": "heads", "value_dim": "head_dim"}
#: the sizes of a block that do not follow from the shapes of its arrays
WIDTHS = ("heads", "kv_heads", "head_dim", "value_dim")


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases: −slope_h · |i − j| is added to the scores of head h (Press et al. 2022).

    slopes : one for each head, positive; `of_heads` gives 2^(−8(h+1)/heads), the paper's for a number of heads that is
    a power of two. Positions count back from the last query and the last key, so that decoding continues where prefill
    ended.
    """

    slopes: tuple[float, ...]

    @classmethod
    def of_heads(cls, heads: int) -> Alibi:
        """The default slopes for this number of heads."""
        return cls(tuple(2.0 ** (-8 * (head + 1) / heads) for head in range(heads)))

    def at(self, place: Place) -> NDArray[np.float64]:
        """The bias of a tile, (heads, rows, columns)."""
        slopes = np.asarray(self.slopes)[place.heads, None, None]
        return np.asarray(-slopes * np.abs(place.diagonal("bottom_right") - place.columns))


@dataclass(frozen=True, eq=False)
class Inputs:
    """NumPy arrays that hold values of `dtype` exactly (bfloat16 in float32), and the attention that is asked for.

    query : (batch, heads, queries, head_dim). key : (batch, kv_heads, keys, head_dim). value : (batch, kv_heads, keys,
    value_dim). heads is a multiple of kv_heads; each key head serves heads/kv_heads successive query heads.
    bias : numbers of `dtype` or wider, broadcastable to (batch, heads, queries, keys), finite; or ALiBi.
    softcap : c > 0. sinks : (heads,). output_gradient : ∂L/∂o, (batch, heads, queries, value_dim).
    block : the multi-head block, if it is asked for. Then query, key and value are NaN, because its projections make
    them, and the answer is the output of the block.

    `Inputs.of` makes the object and checks all this.
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
    ) -> Inputs:
        """The inputs with these arrays.

        causal : True or "top_left", "bottom_right", or False. window : (left, right) keys around a query's own
        position, -1 for no limit, along the causal diagonal (top-left if not causal). key_lengths : the number of real
        keys of each batch element. mask : a boolean array, True keeps; a `Mask`; or its text. A key must be kept by all
        of these. bias : -inf masks its pair. scale : 1/√head_dim by default. dtype : the query's unless given; all but
        the bias is rounded to it.

        Raises ValueError, in one line, for arguments that do not fit.
        """
        given = dict(zip(_INPUTS, (query, key, value), strict=True))
        q, k, v = (floating(name, array, finite=False) for name, array in given.items())
        types = [dtype_of(array) for array in given.values()]
        shape, dtype = _shape_of(q, k, v, types), dtype or types[0]
        added, hidden = _checked_bias(bias, shape, dtype)
        masked = masked_by(causal=causal, window=window, key_lengths=key_lengths) & Mask.of(mask) & hidden  # type: ignore[arg-type]
        masked.check(shape)
        return cls(
            query=round_to(q, dtype),
            key=round_to(k, dtype),
            value=round_to(v, dtype),
            dtype=dtype,
            scale=checked_number("scale", scale, 1 / math.sqrt(q.shape[-1])),
            mask=masked,
            bias=added,
            softcap=checked_number("softcap", softcap, above=LEAST_CAP),
            sinks=_fitting("sinks", sinks, (shape.heads,), dtype),
            output_gradient=_fitting("output_gradient", output_gradient, (*shape[:3], v.shape[-1]), dtype),
        )

    @property
    def shape(self) -> Shape:
        """The shape of the score matrix: batch, heads, queries, keys."""
        batch, heads, queries = self.query.shape[:3]
        return Shape(batch, heads, queries, self.key.shape[2])

    @property
    def kv_heads(self) -> int:
        """The number of heads of key and value."""
        return int(self.key.shape[1])

    @property
    def group(self) -> int:
        """The number of query heads that share one head of key and value."""
        return self.shape.heads // self.kv_heads

    @property
    def bias_array(self) -> NDArray[Any] | None:
        """The bias as an array, broadcastable to the scores, or None."""
        return self.bias.at(Place.whole(self.shape))[None] if isinstance(self.bias, Alibi) else self.bias

    def with_(self, **changes: Any) -> Inputs:
        """A copy with these attributes changed; nothing is checked again."""
        return replace(self, **changes)

    def cast(self, dtype: str) -> Inputs:
        """The same question in another number format, its arrays rounded to that. Raises Declined if they overflow."""
        given = {name: getattr(self, name) for name in (*_INPUTS, *_FURTHER)}
        arrays = {name: round_to(one, dtype) for name, one in given.items() if isinstance(one, np.ndarray)}
        if not all(np.isfinite(one).all() for name, one in arrays.items() if np.isfinite(given[name]).all()):
            raise Declined(f"its {dtype} cannot hold the inputs")
        return self.with_(dtype=dtype, **arrays)

    def without_sinks(self) -> Inputs:
        """Equivalent inputs without sinks: a sink becomes one more key 0, with the value 0 and the sink as its bias.

        This key is the last one, and no mask hides it. The gradients of key and value have one more row, which must be
        left out.
        """
        if self.sinks is None:
            return self
        seen, bias, keys = self.mask.array(self.shape), self.bias_array, self.shape.keys
        if seen is not None:
            seen = np.insert(np.broadcast_to(seen, (*seen.shape[:-1], keys)), keys, True, axis=-1)
        added = np.zeros((1, self.shape.heads, 1, keys)) + (0.0 if bias is None else bias)
        last = np.broadcast_to(self.sinks[:, None, None], (*added.shape[:3], 1))
        one_more = ((0, 0), (0, 0), (0, 1), (0, 0))
        wider = {name: np.pad(getattr(self, name), one_more) for name in ("key", "value")}
        return self.with_(**wider, mask=Mask.of(seen), bias=np.append(added, last, axis=-1), sinks=None)


# -- the multi-head block


def projected(of: Any) -> tuple[int, int, int]:
    """The numbers of components of queries, keys and values over all heads. of : a `Block` or a workload."""
    return of.heads * of.head_dim, of.kv_heads * of.head_dim, of.kv_heads * of.value_dim


def shapes(of: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its name. of : a `Block` or a workload."""
    rows, columns, width = sum(projected(of)), of.heads * of.value_dim, of.d_model
    return dict(zip(PARAMETERS, ((rows, width), (rows,), (width, columns), (width,)), strict=True))


def derived(sizes: Mapping[str, Any]) -> dict[str, int]:
    """`sizes` by name, with kv_heads, head_dim and value_dim derived if they are None. Only d_model may stay None.

    Raises FieldError for a size that is no whole number from 1 to `_MOST_SIZE`, and for sizes that do not fit each
    other.
    """
    found, d_model = dict(sizes), sizes.get("d_model")
    for name, size in sizes.items():
        if size is None and name == "d_model":
            continue
        if size is None and name == "head_dim":
            if d_model is not None and d_model % found["heads"]:
                near = max(one for one in range(1, found["heads"] + 1) if d_model % one == 0)
                wrong = f"must be divisible by heads, got {d_model} and {found['heads']}"
                raise FieldError("d_model", f"{wrong}; take {near} heads, or give a head_dim")
            size = 64 if d_model is None else d_model // found["heads"]
        size = found[_LIKE.get(name, name)] if size is None else size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= _MOST_SIZE:
            raise FieldError(name, f"must be a whole number from 1 to {_MOST_SIZE:,}, got {size!r}")
        found[name] = int(size)
    if found["heads"] % found["kv_heads"]:
        raise FieldError("kv_heads", f"must divide the {found['heads']} heads, got {found['kv_heads']}")
    return found


@dataclass(frozen=True, eq=False)
class Block:
    """The NumPy arrays x, memory and parameters; they hold values of one number format exactly (bfloat16 in float32).

    x : (batch, queries, d_model). memory : (batch, keys, d_model), None if x attends to itself. parameters : by their
    names, in the shapes of `shapes`. `Block.of` makes the object and checks all this.
    """

    x: NDArray[Any]
    memory: NDArray[Any] | None
    parameters: Mapping[str, NDArray[Any]]
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int

    @classmethod
    def of(
        cls, x: ArrayLike, parameters: Mapping[str, Any], *, memory: ArrayLike | None = None, **sizes: Any
    ) -> Block:
        """The block of these arrays; `parameters` may be the state dict of a `torch.nn.MultiheadAttention`.

        sizes : heads, and kv_heads (default: heads), head_dim (d_model/heads) and value_dim (head_dim). Raises
        ValueError, in one line, for arguments that do not fit.
        """
        given = floating("x", x)
        if given.ndim != 3 or 0 in given.shape:
            shaped = "must be a non-empty array of shape (batch, queries, d_model)"
            raise FieldError("x", f"{shaped}, got {given.shape}")
        batch, _, d_model = given.shape
        other = None if memory is None else floating("memory", memory)
        if other is not None and (other.ndim != 3 or other.shape[::2] != (batch, d_model) or not other.size):
            wrong = f"must have shape ({batch}, keys, {d_model}) as x has, got {other.shape}"
            raise FieldError("memory", wrong)
        found = derived({"d_model": d_model, **dict.fromkeys(WIDTHS), **sizes})
        if not isinstance(parameters, Mapping):
            wrong = f"must be a state dict, got {type(parameters).__name__}; use module.state_dict()"
            raise FieldError("parameters", wrong)
        block = cls(given, other, {}, **{name: found[name] for name in WIDTHS})
        wanted = shapes(block)
        odd = [f"no {name}" for name in wanted if parameters.get(name) is None]
        if odd := odd or sorted(set(parameters) - set(wanted)):
            holds = f"a block's state dict holds {', '.join(wanted)}, as torch.nn.MultiheadAttention(bias=True) does"
            raise ValueError(f"{holds}, got {odd[0]}; give zeros for a bias that is not there")
        then = f"; transpose it, or give other heads than {block.heads} of {block.head_dim} ({block.kv_heads} of keys)"
        fitting = {name: _fitting(name, parameters[name], shape, then=then) for name, shape in wanted.items()}
        return replace(block, parameters=fitting)

    @property
    def d_model(self) -> int:
        """The width of x and of the output."""
        return int(self.x.shape[2])

    @property
    def source(self) -> NDArray[Any]:
        """The array that is projected to keys and values: the memory, or x itself."""
        return self.x if self.memory is None else self.memory

    @property
    def projections(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Matrix and bias of "query", "key" and "value": views of the parameters."""
        q, k, _ = projected(self)
        at = {"query": slice(0, q), "key": slice(q, q + k), "value": slice(q + k, None)}
        weight, bias = self.parameters["in_proj_weight"], self.parameters["in_proj_bias"]
        return {name: (weight[rows], bias[rows]) for name, rows in at.items()}

    def unknown(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Arrays of NaN with the shapes of query, key and value, which are not projected yet. They take no memory."""
        nan, (batch, queries, _), keys = np.full((), np.nan, self.x.dtype), self.x.shape, self.source.shape[1]
        q, k = (batch, self.heads, queries), (batch, self.kv_heads, keys)
        of_q, of_k, of_v = (*q, self.head_dim), (*k, self.head_dim), (*k, self.value_dim)
        return np.broadcast_to(nan, of_q), np.broadcast_to(nan, of_k), np.broadcast_to(nan, of_v)


# -- as plain data and arrays, for another process ---------------------------------------------------


def pack(inputs: Inputs) -> tuple[dict[str, Any], tuple[NDArray[Any], ...]]:
    """The arguments of `unpack`: plain data, and the arrays in the order of their names in it; those of masks last."""
    given = [part.array for part in inputs.mask.parts if isinstance(part, Given)]
    told = Mask(tuple(part for part in inputs.mask.parts if not isinstance(part, Given)))
    block = inputs.block
    every = {name: getattr(inputs, name) for name in (_FURTHER if block else (*_INPUTS, *_FURTHER))}
    every = ({"x": block.x, "memory": block.memory, **block.parameters} if block else {}) | every
    arrays = {name: array for name, array in every.items() if isinstance(array, np.ndarray)}
    plain = {
        "arrays": list(arrays),
        "mask": told.text,
        "block": block and {name: getattr(block, name) for name in WIDTHS},
        "numbers": {name: getattr(inputs, name) for name in ("dtype", "scale", "softcap")},
        "slopes": inputs.bias.slopes if isinstance(inputs.bias, Alibi) else None,
    }
    return plain, (*arrays.values(), *given)


def unpack(plain: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> Inputs:
    """The inputs that were packed. Nothing is checked again."""
    names = plain["arrays"]
    found: dict[str, Any] = dict(zip(names, arrays, strict=False))
    if plain["slopes"] is not None:
        found["bias"] = Alibi(tuple(plain["slopes"]))
    mask = Mask.parse(plain["mask"]) & Mask(tuple(map(Given, arrays[len(names) :])))
    if plain["block"] is not None:
        parameters = {name: found.pop(name) for name in PARAMETERS}
        block = Block(found.pop("x"), found.pop("memory", None), parameters, **plain["block"])
        found |= {**dict(zip(_INPUTS, block.unknown(), strict=True)), "block": block}
    return Inputs(**found, **plain["numbers"], mask=mask)


# -- checks of arguments -----------------------------------------------------------------------------


def checked_number(name: str, value: Any, default: float | None = None, *, above: float = -math.inf) -> Any:
    """`value` as a float, or the default for None. Raises FieldError unless it is above `above` and up to 1e30."""
    if value is None:
        return default
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and above < value and abs(value) <= _MOST_FACTOR):
        wanted = "a finite number" if above == -math.inf else f"a number above {above:g}"
        raise FieldError(name, f"must be {wanted} up to {_MOST_FACTOR:g} or None, got {value!r}")
    return float(value)


def _shape_of(query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], types: Sequence[str]) -> Shape:
    """The shape of the score matrix. Raises ValueError if the arrays, given in these formats, do not fit each other."""
    for name, array in zip(_INPUTS, (query, key, value), strict=True):
        if array.ndim != 4 or 0 in array.shape:
            wanted = "must be a non-empty array of shape (batch, heads, length, dim)"
            raise FieldError(name, f"{wanted}, got {array.shape}")
    (batch, heads, queries, dim), (k_batch, kv_heads, keys, k_dim) = query.shape, key.shape
    found = f"got {query.shape}, {key.shape}, {value.shape}"
    alike = batch == k_batch and key.shape[:3] == value.shape[:3]
    for fits, must in (
        (len(set(types)) == 1, f"query, key and value must share one dtype, got {', '.join(types)}"),
        (dim == k_dim, f"query and key must have the same head_dim, {found}"),
        (alike, f"query, key and value must agree in batch, and key and value in heads and length, {found}"),
        (heads % kv_heads == 0, f"the key's heads must divide the query's, {found}"),
    ):
        if not fits:
            raise ValueError(must)
    return Shape(batch, heads, queries, keys)


def _checked_bias(bias: ArrayLike | Alibi | None, shape: Shape, dtype: str) -> tuple[Any, Mask]:
    """The bias with 0 in place of -inf, and the mask that hides the pairs that have -inf."""
    if isinstance(bias, Alibi) and len(bias.slopes) != shape.heads:
        raise ValueError(f"ALiBi needs one slope a head, {shape.heads}, got {len(bias.slopes)}")
    if bias is None or isinstance(bias, Alibi):
        return bias, EVERYTHING
    added = floating("bias", bias, finite=False)
    broadcastable("bias", added, shape)
    hidden = np.isneginf(added)
    seen = np.where(hidden, added.dtype.type(0), added)
    if not np.isfinite(round_to(seen, dtype)).all():
        wrong = f"must hold numbers of {dtype}, or -inf to hide a key, got ±{np.abs(seen).max():g}"
        raise FieldError("bias", wrong)
    return (seen, Mask((Given(~hidden),))) if hidden.any() else (added, EVERYTHING)


def _fitting(name: str, array: Any, shape: tuple[int, ...], dtype: str = "", then: str = "") -> Any:
    """`array`, finite floating-point numbers of this shape, rounded to a `dtype` if there is one; None for None."""
    if array is None:
        return None
    found = floating(name, array)
    if found.shape != shape:
        raise FieldError(name, f"must have shape {shape}, got {found.shape}{then}")
    rounded = round_to(found, dtype) if dtype else found
    if not np.isfinite(rounded).all():
        raise FieldError(name, f"must hold numbers of {dtype}, got ±{np.abs(found).max():g}")
    return rounded
