"""A multi-head block as arrays: x, its memory, its parameters, and what they mean.

    q = x W_Qᵀ + b_Q,  k = m W_Kᵀ + b_K,  v = m W_Vᵀ + b_V      m the memory, x itself where there is none
    y = concatenation over heads of attention(q_h, k_h, v_h) W_Oᵀ + b_O

(Vaswani et al. 2017, section 3.2.2). The parameters are those of `torch.nn.MultiheadAttention` under its names: the
rows of in_proj_weight are W_Q, W_K and W_V one above the other, each of them its heads one above the other.

With rotary positions (Su et al. 2021, "RoFormer") component c < head_dim/2 of a query or key at position t, and
component c + head_dim/2, are turned as a pair by the angle t · 10000^(−2c/head_dim): the pairing and the base of Llama
2. Keys stand at 0, 1, ...; the last query stands where the last key does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from attnlab.problem.workload import Workload

#: the parameters, by their names in a state dict
PARAMETERS = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
#: how a contender may compute the projections of a block
PROJECTIONS = ("fused", "packed", "loop")
_BASE = 10000.0
_WIDTHS = ("heads", "kv_heads", "head_dim", "value_dim", "rotary")


def projected(of: Block | Workload) -> tuple[int, int, int]:
    """Components of queries, keys and values, all heads together: the rows of W_Q, W_K and W_V."""
    return of.heads * of.head_dim, of.kv_heads * of.head_dim, of.kv_heads * of.value_dim


def shapes(of: Block | Workload, d_model: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by its name."""
    rows, columns = sum(projected(of)), of.heads * of.value_dim
    return dict(zip(PARAMETERS, ((rows, d_model), (rows,), (d_model, columns), (d_model,)), strict=True))


def head_dim_of(d_model: int | None, heads: int) -> int:
    """The head_dim where none is given: d_model/heads of a block, else 64. Raises ValueError where heads do not fit."""
    if d_model is None:
        return 64
    if d_model % heads:
        near = max(one for one in range(1, heads + 1) if d_model % one == 0)
        raise ValueError(
            f"d_model must be divisible by heads, got {d_model} and {heads}; take {near} heads, or give a head_dim"
        )
    return d_model // heads


@dataclass(frozen=True, eq=False)
class Block:
    """x, memory and parameters in NumPy, holding values of one number format exactly (bfloat16 in float32).

    x : (batch, queries, d_model). memory : (batch, keys, d_model), None where x attends to itself. parameters : by
    their names, shapes as in `shapes`. Made by `of`, which checks all that.
    """

    x: NDArray[Any]
    memory: NDArray[Any] | None
    parameters: Mapping[str, NDArray[Any]]
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rotary: bool = False

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        parameters: Mapping[str, Any],
        *,
        heads: int,
        memory: ArrayLike | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        rotary: bool = False,
    ) -> Block:
        """The block of these arrays; `parameters` may be the state dict of a `torch.nn.MultiheadAttention`.

        kv_heads : as many as heads unless given. head_dim : d_model/heads unless given. value_dim : head_dim unless
        given. Raises ValueError, in one line, for whatever does not fit.
        """
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            if size is not None and not (isinstance(size, Integral) and size >= 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
        given = floating("x", x)
        if given.ndim != 3 or 0 in given.shape:
            raise ValueError(
                f"x must be a non-empty array of shape (batch, queries, d_model), got {given.shape}"
            )
        batch, _, d_model = given.shape
        other = None if memory is None else floating("memory", memory)
        if other is not None and not (
            other.ndim == 3 and other.shape[::2] == (batch, d_model) and other.shape[1]
        ):
            raise ValueError(f"memory must have shape ({batch}, keys, {d_model}) as x has, got {other.shape}")
        dim = head_dim_of(d_model, heads) if head_dim is None else head_dim
        of = cls(given, other, {}, heads, kv_heads or heads, dim, value_dim or dim, rotary)
        if heads % of.kv_heads:
            raise ValueError(f"kv_heads must divide the {heads} heads, got {of.kv_heads}")
        if rotary and dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {dim}")
        return replace(of, parameters=_fitting(of, parameters))

    def widths(self) -> dict[str, Any]:
        """What it is beside its arrays, as plain data."""
        return {name: getattr(self, name) for name in _WIDTHS}

    @property
    def d_model(self) -> int:
        """The width of x and of the output."""
        return int(self.x.shape[2])

    @property
    def source(self) -> NDArray[Any]:
        """What keys and values are projected from: the memory, or x itself."""
        return self.x if self.memory is None else self.memory

    @property
    def projections(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Matrix and bias of "query", "key" and "value": views of the parameters."""
        q, k, _ = projected(self)
        at = {"query": slice(0, q), "key": slice(q, q + k), "value": slice(q + k, None)}
        weight, bias = self.parameters["in_proj_weight"], self.parameters["in_proj_bias"]
        return {name: (weight[rows], bias[rows]) for name, rows in at.items()}

    @property
    def positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of queries and of keys."""
        queries, keys = self.x.shape[1], self.source.shape[1]
        return np.arange(queries) + keys - queries, np.arange(keys)

    def unknown(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Query, key and value in their shapes, every number NaN and no memory taken: nobody has projected them yet."""
        nan, (batch, queries, _), keys = np.full((), np.nan, self.x.dtype), self.x.shape, self.source.shape[1]
        return (
            np.broadcast_to(nan, (batch, self.heads, queries, self.head_dim)),
            np.broadcast_to(nan, (batch, self.kv_heads, keys, self.head_dim)),
            np.broadcast_to(nan, (batch, self.kv_heads, keys, self.value_dim)),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All its arrays by name, those of a state dict under their names there."""
        found = {"x": self.x} if self.memory is None else {"x": self.x, "memory": self.memory}
        return {**found, **self.parameters}


def angles(positions: NDArray[Any], head_dim: int) -> NDArray[np.float64]:
    """By how much rotary positions turn each pair of components: (positions, head_dim/2), in radians."""
    pairs = np.arange(head_dim // 2)
    return np.asarray(positions[:, None] * _BASE ** (-2.0 * pairs / head_dim))


def floating(name: str, array: Any, *, finite: bool = True) -> NDArray[Any]:
    """Floating-point numbers of an array, or of a tensor on any device, bfloat16 in float32, which holds it exactly.

    Raises ValueError for anything else, and for a NaN or an infinity where they must be `finite`.
    """
    if hasattr(array, "detach"):  # a PyTorch tensor; NumPy knows no bfloat16
        array = (array.float() if str(array.dtype) == "torch.bfloat16" else array).detach().cpu()
    found = np.asarray(array)
    if found.dtype.name == "bfloat16":
        found = found.astype(np.float32)
    if found.dtype.kind != "f":
        raise ValueError(f"{name} must hold floating-point numbers, got {found.dtype}")
    if finite and not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return found


def _fitting(block: Block, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The parameters of a state dict, checked: the same names, each in its shape."""
    if not isinstance(given, Mapping):
        raise ValueError(
            f"parameters must be a state dict, arrays by their names, got {type(given).__name__}; "
            "of a module give its state_dict()"
        )
    wanted = shapes(block, block.d_model)
    odd = [f"no {name}" for name in wanted if given.get(name) is None] + sorted(set(given) - set(wanted))
    if odd:
        raise ValueError(
            f"a block's state dict holds {', '.join(wanted)}, as torch.nn.MultiheadAttention(bias=True) does, got "
            f"{odd[0]}; give zeros for a bias that is not there"
        )
    found = {name: floating(name, given[name]) for name in wanted}
    for name, shape in wanted.items():
        if found[name].shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} for d_model {block.d_model}, {block.heads} heads of "
                f"{block.head_dim} and {block.kv_heads} key heads, got {found[name].shape}; transpose it, or say "
                "heads, kv_heads and head_dim"
            )
    return found
