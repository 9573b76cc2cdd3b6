"""What a call asks, in the terms in which workloads were measured: what must be equal, and what need only be near.

A call and a measured workload are brought into the same form, so that they can be held against each other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from attnlab.backends.keywords import flag_and_array
from attnlab.libraries.torch_sdpa import LEAST_SCALE
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.workload import CONTIGUOUS, DEVICES, GIVEN, Workload

#: what a call may be: one whose gradients may be asked for pays for the way back too
FORWARD, TRAINING = "forward", "training"
_AXES = 4


class Outside(Exception):
    """The call is not of what was measured; the message says what it has, and what would have been needed."""


class Kind(NamedTuple):
    """What of a call must be equal to what was measured, in the order in which a difference is told.

    `mask` is "", "causal", "booleans" or "numbers": what PyTorch is given. `grouped` is how many heads share a key
    head. `one_query` tells decoding, which is another problem than a short sequence.
    """

    device: str
    dtype: str
    direction: str
    mask: str
    head_dim: int
    value_dim: int
    grouped: int
    one_query: bool


class Sizes(NamedTuple):
    """What of a call may differ from what was measured; `heads` of all batch elements together."""

    queries: int
    keys: int
    heads: int

    def factor(self, other: Sizes) -> float:
        """The factor, 1 or more, by which the size that differs most differs."""
        return max(max(one, two) / min(one, two) for one, two in zip(self, other, strict=True))

    def apart(self, other: Sizes) -> float:
        """The distance of the logarithms, by which the nearer of two equal factors is chosen."""
        return math.dist(tuple(map(math.log, self)), tuple(map(math.log, other)))


def kind_of(workload: Workload) -> Kind | None:
    """The kind of call that `workload` measures, or None where no call of PyTorch's function asks for it."""
    further = workload.d_model, workload.softcap, workload.storage, workload.splits, workload.sinks
    if further != (None, None, CONTIGUOUS, 1, False) or workload.direction not in (FORWARD, TRAINING):
        return None
    causal, array = flag_and_array(workload)
    return Kind(
        device=workload.device,
        dtype=workload.dtype,
        direction=workload.direction,
        mask=array or ("causal" if causal else ""),
        head_dim=workload.head_dim,
        value_dim=workload.value_dim,
        grouped=workload.heads // workload.kv_heads,
        one_query=workload.queries == 1,
    )


def sizes_of(workload: Workload) -> Sizes:
    """The sizes of what `workload` measures."""
    return Sizes(workload.queries, workload.keys, workload.batch * workload.heads)


def workload_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    differentiable: bool,
) -> Workload:
    """The workload that a call of ``scaled_dot_product_attention`` poses. Raises Outside for what none can be.

    query: (batch, heads, queries, head_dim), key: (batch, kv_heads, keys, head_dim), value: (batch, kv_heads, keys,
    value_dim). differentiable : whether its gradients may be asked for.
    """
    for name, number in (("dropout_p", dropout_p), ("scale", scale)):
        if number is not None and not isinstance(number, int | float):
            raise Outside(f"{name} is no number of Python's, but {type(number).__name__}")
    if dropout_p != 0:
        raise Outside(f"dropout was not measured, and dropout_p is {dropout_p:g}")
    tensors = query, key, value
    dtype = str(query.dtype).removeprefix("torch.")
    if any(one.dtype != query.dtype or one.device != query.device for one in tensors) or dtype not in DTYPES:
        given = ", ".join(f"{one.dtype} on {one.device}" for one in tensors)
        raise Outside(f"query, key and value must be of one measured dtype on one device, got {given}")
    if query.device.type not in DEVICES:
        raise Outside(f"{query.device.type} was not measured: attnlab measures on {' and '.join(DEVICES)}")
    _require_shapes(query, key, value, enable_gqa)
    if scale is not None and not LEAST_SCALE <= scale < math.inf:
        raise Outside(f"only a scale above 0 was measured, got {scale!r}")
    booleans = _require_mask(query, key, attn_mask, is_causal)
    batch, heads, queries, head_dim = query.shape
    return Workload(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        queries=queries,
        keys=key.shape[2],
        head_dim=head_dim,
        value_dim=value.shape[3],
        dtype=dtype,
        device=query.device.type,
        causal="top_left" if is_causal else False,
        mask=GIVEN if booleans else "",
        bias="none" if booleans or attn_mask is None else GIVEN,
        scale=1 / math.sqrt(head_dim) if scale is None else scale,
        layout="bshd" if query.stride(1) < query.stride(2) else "bhsd",
        direction=TRAINING if differentiable else FORWARD,
    )


def _require_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Raises Outside for arrays that no workload has; PyTorch's own may take them by broadcasting, or refuse them."""
    shapes = [tuple(one.shape) for one in (query, key, value)]
    shown = ", ".join(map(str, shapes))
    if any(len(one) != _AXES for one in shapes):
        raise Outside(
            f"only arrays of four axes were measured, (batch, heads, length, dim); got shapes {shown}"
        )
    (batch, heads, _, dim), (*of_key, of_dim), (*of_value, _) = shapes
    if 0 in query.shape + key.shape + value.shape:
        raise Outside(f"no empty array was measured; got shapes {shown}")
    if of_key != of_value or of_key[0] != batch or of_dim != dim or heads % of_key[1]:
        raise Outside(f"arrays that PyTorch broadcasts, or refuses, were not measured; got shapes {shown}")
    if heads != of_key[1] and not enable_gqa:
        raise Outside(f"{heads} heads share {of_key[1]} of key and value without enable_gqa")


def _require_mask(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> bool:
    """Whether there is a mask of booleans. Raises Outside for one that no workload has."""
    if attn_mask is None:
        return False
    if is_causal:
        raise Outside("attn_mask beside is_causal was not measured")
    if attn_mask.requires_grad:
        raise Outside("gradients of attn_mask were not measured")
    booleans = str(attn_mask.dtype) == "torch.bool"
    if attn_mask.device != query.device or not (booleans or attn_mask.dtype == query.dtype):
        raise Outside(f"attn_mask must be of booleans or of {query.dtype} on {query.device}, to be measured")
    whole = (*query.shape[:3], key.shape[2])
    shape = (1,) * (_AXES - attn_mask.ndim) + tuple(attn_mask.shape)
    fits = len(shape) == _AXES and all(one in (1, full) for one, full in zip(shape, whole, strict=True))
    if not fits or attn_mask.ndim < 2:
        raise Outside(f"attn_mask must have a shape that broadcasts to {whole}, got {tuple(attn_mask.shape)}")
    return booleans
