"""One question, put to every backend alike: shape, mask, scale, number format, device, inputs.

A workload is plain data: it compares by value, travels as a dictionary, and knows by arithmetic alone
its pairs, FLOPs, least bytes and the size of its score matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from numpy.typing import NDArray

from attnlab.ground.dtypes import DTYPES, ITEM_BYTES
from attnlab.ground.regimes import REGIMES

DEVICES = ("cpu", "cuda")
_SIZES = ("batch", "heads", "queries", "keys", "head_dim", "value_dim")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Attention of `queries` positions over `keys` positions, for `batch` x `heads` independent heads.

    query: (batch, heads, queries, head_dim), key: (batch, heads, keys, head_dim),
    value: (batch, heads, keys, value_dim), output: (batch, heads, queries, value_dim).

    `value_dim` defaults to `head_dim` and `scale` to 1/sqrt(head_dim) (Vaswani et al. 2017, section
    3.2.1). `causal` lets query i see keys 0 to i, counted from the first key whatever the lengths
    (top-left alignment). `regime` names how the inputs are drawn, see `attnlab.ground.regimes`.
    Raises ValueError for an empty or negative size, or an unknown dtype, device or regime.
    """

    batch: int = 1
    heads: int = 8
    queries: int = 512
    keys: int = 512
    head_dim: int = 64
    value_dim: int = None  # type: ignore[assignment]  # None stands for head_dim, resolved below
    dtype: str = "float32"
    device: str = "cpu"
    causal: bool = False
    scale: float = None  # type: ignore[assignment]  # None stands for 1/sqrt(head_dim), resolved below
    regime: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.head_dim)
        for name in _SIZES:
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
        if self.scale is None:
            object.__setattr__(self, "scale", 1 / math.sqrt(self.head_dim))
        self._check_kinds()

    def _check_kinds(self) -> None:
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float):
            raise ValueError(f"scale must be a number or None, got {self.scale!r}")
        if not math.isfinite(self.scale):
            raise ValueError(f"scale must be finite, got {self.scale!r}")
        object.__setattr__(self, "scale", float(self.scale))
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be true or false, got {self.causal!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, got {self.seed!r}")
        for name, known in (("dtype", DTYPES), ("device", DEVICES), ("regime", tuple(REGIMES))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")

    @classmethod
    def of_arrays(
        cls,
        query: NDArray[Any],
        key: NDArray[Any],
        value: NDArray[Any],
        *,
        causal: bool = False,
        scale: float | None = None,
        dtype: str | None = None,
        device: str = "cpu",
    ) -> Workload:
        """The workload that these arrays pose; shapes as in the class, dtype from `query` unless given.

        Raises ValueError where the shapes do not fit each other or the arrays differ in dtype.
        """
        for name, array in (("query", query), ("key", key), ("value", value)):
            if array.ndim != 4:
                raise ValueError(
                    f"{name} must have shape (batch, heads, length, dim), got {array.ndim} axes: {array.shape}"
                )
        if not query.dtype == key.dtype == value.dtype:
            raise ValueError(
                f"query, key and value must share one dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
            )
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(
                f"query and key must have the same head_dim, got {query.shape[-1]} and {key.shape[-1]}"
            )
        if key.shape[2] != value.shape[2]:
            raise ValueError(
                f"key and value must have the same length, got {key.shape[2]} and {value.shape[2]}"
            )
        if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
            raise ValueError(
                "query, key and value must agree in batch and heads, got "
                f"{query.shape[:2]}, {key.shape[:2]}, {value.shape[:2]}"
            )
        batch, heads, queries, head_dim = query.shape
        return cls(
            batch=batch,
            heads=heads,
            queries=queries,
            keys=key.shape[2],
            head_dim=head_dim,
            value_dim=value.shape[-1],
            dtype=dtype or str(query.dtype),
            device=device,
            causal=causal,
            scale=scale,  # type: ignore[arg-type]  # None is resolved by the class
        )

    @property
    def pairs(self) -> int:
        """Query-key pairs that the mask keeps, over all batches and heads."""
        if not self.causal:
            per_head = self.queries * self.keys
        else:
            full = min(self.queries, self.keys)
            per_head = full * (full + 1) // 2 + (self.queries - full) * self.keys
        return self.batch * self.heads * per_head

    @property
    def flops(self) -> int:
        """Floating-point operations of the two matrix products, over the pairs that the mask keeps."""
        return 2 * self.pairs * (self.head_dim + self.value_dim)

    @property
    def input_bytes(self) -> int:
        """Bytes of query, key and value together."""
        rows = self.queries * self.head_dim + self.keys * (self.head_dim + self.value_dim)
        return self.batch * self.heads * rows * ITEM_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        """Bytes of the output: the least that any implementation must hold beside its inputs."""
        return self.batch * self.heads * self.queries * self.value_dim * ITEM_BYTES[self.dtype]

    @property
    def least_bytes(self) -> int:
        """Least memory traffic: every input read once and the output written once."""
        return self.input_bytes + self.output_bytes

    @property
    def score_bytes(self) -> int:
        """Bytes of one full score matrix, batch x heads x queries x keys, whatever the mask."""
        return self.batch * self.heads * self.queries * self.keys * ITEM_BYTES[self.dtype]

    @property
    def label(self) -> str:
        """A short name that tells workloads apart: ``b1 h8 n512 d64 float32 cpu``."""
        length = f"n{self.queries}" if self.queries == self.keys else f"n{self.queries}x{self.keys}"
        dim = f"d{self.head_dim}" if self.value_dim == self.head_dim else f"d{self.head_dim}v{self.value_dim}"
        parts = [f"b{self.batch}", f"h{self.heads}", length, dim, self.dtype, self.device]
        if self.causal:
            parts.append("causal")
        if self.scale != 1 / math.sqrt(self.head_dim):
            parts.append(f"scale={self.scale:g}")
        if self.regime != "normal":
            parts.append(self.regime)
        if self.seed:
            parts.append(f"seed={self.seed}")
        return " ".join(parts)

    def with_(self, **changes: Any) -> Workload:
        """A copy with these fields changed.

        `value_dim` and `scale` stay as they are unless named: pass None to derive them anew.
        """
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse of `to_dict`. Raises ValueError for an unknown field."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown workload field {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**data)
