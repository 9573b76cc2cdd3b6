"""Faults of precision on the way back: P, A, D, T, ln Z and sums narrower than the dtype, and cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .backward_parts import (
    Backward,
    Four,
    from_output,
    from_weights,
    in_blocks,
    products_of,
    scaled,
    slopes_of,
    stored_sums,
    whole,
    with_parts,
)
from .fault import Fault, only_in
from .parts import Array, cut, cut_to, in_sequence, rounder, scores_of
from .rounding import fast_exp


def in_doubles(last: Callable[[Array, str], Array] = round_to, **parts: Any) -> Callable[[str], Backward]:
    """The formulas in float64 with parts exchanged, and `last` of each result and the dtype."""

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            wide = (array.astype(np.float64) for array in (q, k, v, g))
            output, *rest = whole(*wide, **options, dtype="float64", **parts)
            return round_to(output, dtype), *(last(one, dtype) for one in rest)  # type: ignore[return-value]

        return gradients

    return make


def cut_off(hook: str) -> Callable[[str], Backward]:
    """One of the weights of the last sums is cut off to the dtype, everything else in float64."""

    def make(dtype: str) -> Backward:
        return in_doubles(**{hook: lambda w: cut_to(w, dtype).astype(np.float64)})(dtype)

    return make


def cut_slopes(dtype: str) -> Backward:
    """T is cut off to the dtype for both gradients."""
    return in_doubles(slopes=lambda p, a, d: cut_to(slopes_of(p, a, d), dtype).astype(np.float64))(dtype)


def inputs_in(low: Callable[[Array], Array], *indexes: int) -> Callable[[str], Backward]:
    """Some of q, k, v and g are narrowed before the way back; the output is right."""

    def make(dtype: str) -> Backward:
        def gradients(*inputs: Array, **options: Any) -> Four:
            right = whole(*inputs, **options, dtype=dtype)
            narrow = (low(one) if at in indexes else one for at, one in enumerate(inputs))
            return right[0], *whole(*narrow, **options, dtype=dtype)[1:]

        return gradients

    return make


def offset_in(low: str) -> Callable[..., Array]:
    return lambda p, a, g, o: rounder(low)(from_weights(p, a, g, o))


def offset_summed_in(low: str) -> Callable[..., Array]:
    """g·o added up component by component in a narrow sum."""

    def offset(p: Array, a: Array, g: Array, o: Array) -> Array:
        total = np.zeros_like(g[..., :1])
        for c in range(g.shape[-1]):
            total = round_to(total + (g * o)[..., c : c + 1], low).astype(g.dtype)
        return total

    return offset


def in_eight_bits(p: Array) -> Array:
    return cut(p * (1 + 2.0**-4), 4)


def logs_in(low: str) -> Callable[[Array, Array], Array]:
    return lambda top, log: rounder(low)(top + log)


_ADDED = "16 terms are added up in 15 roundings; PyTorch 2.13 adds up n/4 terms of D so, in this dtype or a coarser"
_HONEST = "it is what an honest kernel stores in this dtype, or finer"
_FINER = "2^-11 is an eighth of bfloat16's unit roundoff, within what its stored P and T are rounded to"
_EXACT = "inputs of this dtype have no more bits than that"
_CUT = (
    "cutting off shifts by u/(2 ln 2) = 0.72 u on average, as a constant (scale, log2 e) that is rounded once in "
    "float32 does: up to 4 u of that are honest"
)
_LOGS = (
    "2^-11 of ln Z = 5 moves a row's P by at most 0.0024, 0.6 u of bfloat16, within what storing P rounds; ln Z = 1000 "
    "by a quarter, where honest bfloat16 scores are off by 2"
)
_SCORES = "an honest kernel may store its scores in this dtype, or finer, in every pass"

FAULTS = (
    Fault("P cut off in dv", cut_off("for_value"), (("float32", _CUT),)),
    Fault("T cut off", cut_slopes, (("float32", _CUT),)),
    Fault("T cut off in dk", cut_off("for_key"), (("float32", _CUT),)),
    Fault("gradients cut off", in_doubles(cut_to), (("float32", _CUT),)),
    Fault("P in 8 bits", with_parts(for_value=in_eight_bits)),
    Fault("P in 8 bits everywhere", with_parts(weights_again=in_eight_bits)),
    Fault(
        "P in bfloat16",
        with_parts(for_value=rounder("bfloat16")),
        only_in("float32", "float16", because=_HONEST),
    ),
    Fault("P in float16", with_parts(for_value=rounder("float16")), only_in("float32", because=_HONEST)),
    Fault(
        "T in bfloat16",
        with_parts(times=lambda t, scale: scaled(rounder("bfloat16")(t), scale)),
        only_in("float32", "float16", because=_HONEST),
    ),
    Fault(
        "T in float16",
        with_parts(times=lambda t, scale: scaled(rounder("float16")(t), scale)),
        only_in("float32", because=_HONEST),
    ),
    Fault(
        "A in bfloat16",
        with_parts(products=lambda g, v: rounder("bfloat16")(products_of(g, v))),
        only_in("float32", "float16", because=_HONEST),
    ),
    Fault(
        "A in float16",
        with_parts(products=lambda g, v: rounder("float16")(products_of(g, v))),
        only_in("float32", because=_HONEST),
    ),
    Fault(
        "D in bfloat16",
        with_parts(offset=offset_in("bfloat16")),
        only_in("float32", "float16", because=_HONEST),
    ),
    Fault("D in float16", with_parts(offset=offset_in("float16")), only_in("float32", because=_HONEST)),
    Fault(
        "D added up in bfloat16",
        with_parts(offset=offset_summed_in("bfloat16")),
        only_in("float32", "float16", because=_ADDED),
    ),
    Fault(
        "D added up in float16",
        with_parts(offset=offset_summed_in("float16")),
        only_in("float32", because=_ADDED),
    ),
    Fault(
        "D of an output in bfloat16",
        with_parts(offset=from_output, save=rounder("bfloat16")),
        only_in("float32", "float16", because=_HONEST),
    ),
    Fault(
        "D of an output in float16",
        with_parts(offset=from_output, save=rounder("float16")),
        only_in("float32", because=_HONEST),
    ),
    Fault("ln Z in bfloat16", in_blocks(save_logs=logs_in("bfloat16"))),
    Fault("ln Z in float16", in_blocks(save_logs=logs_in("float16")), (("bfloat16", _LOGS),)),
    Fault("sums over queries in float16", in_blocks(block=8, add=stored_sums("float16"))),
    Fault("sums over queries in bfloat16", in_blocks(block=8, add=stored_sums("bfloat16"))),
    Fault(
        "sums term after term in the dtype",
        lambda dtype: with_parts(mix=in_sequence(dtype, 1))(dtype),
        (
            (
                "float32",
                "float32 sums are what every honest kernel has, in chains as long as the queries are many",
            ),
        ),
    ),
    Fault("sums term after term in bfloat16", with_parts(mix=in_sequence("bfloat16", 1))),
    Fault("sums term after term in float16", with_parts(mix=in_sequence("float16", 1))),
    Fault(
        "scores again in bfloat16",
        with_parts(again=lambda q, k, scale: rounder("bfloat16")(scores_of(q, k, scale))),
        only_in("float32", "float16", because=_SCORES),
    ),
    Fault(
        "scores again in float16",
        with_parts(again=lambda q, k, scale: rounder("float16")(scores_of(q, k, scale))),
        only_in("float32", because=_SCORES),
    ),
    Fault(
        "fast exp again, 2^-11", in_blocks(exp=fast_exp(11)), only_in("float32", "float16", because=_FINER)
    ),
    Fault("fast exp again, 2^-6", in_blocks(exp=fast_exp(6))),
    Fault(
        "inputs cut to TF32", inputs_in(lambda x: cut(x, 11), 0, 1, 2, 3), only_in("float32", because=_EXACT)
    ),
    Fault(
        "output gradient cut to TF32", inputs_in(lambda x: cut(x, 11), 3), only_in("float32", because=_EXACT)
    ),
    Fault(
        "output gradient in bfloat16",
        inputs_in(rounder("bfloat16"), 3),
        only_in("float32", "float16", because=_EXACT),
    ),
    Fault(
        "bfloat16 inside",
        inputs_in(rounder("bfloat16"), 0, 1, 2, 3),
        only_in("float32", "float16", because=_EXACT),
    ),
)
