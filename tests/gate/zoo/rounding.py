"""Faults of precision: accumulators, weights and inputs narrower than the dtype, cutting off, fast functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .fault import Attend, Fault, only_in
from .parts import Array, blocked, cut, cut_to, in_sequence, plain, rounder, scores_of, softmax, sum_in


def exchanged(**parts: Any) -> Callable[[str], Attend]:
    return lambda dtype: partial(plain, dtype=dtype, **parts)


def weights_in(low: str) -> Callable[[str], Attend]:
    return exchanged(weights=lambda s: rounder(low)(softmax(s)))


def scores_in(low: str) -> Callable[[str], Attend]:
    return exchanged(scores=lambda q, k, scale: rounder(low)(scores_of(q, k, scale)))


def inputs_in(low: Callable[[Array], Array]) -> Callable[[str], Attend]:
    def make(dtype: str) -> Attend:
        return lambda q, k, v, **options: plain(low(q), low(k), low(v), **options, dtype=dtype)

    return make


def in_doubles(last: str | None = None, **parts: Any) -> Callable[..., Array]:
    """The formula in float64 with exchanged parts, rounded to `last`."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        exact = plain(*(a.astype(np.float64) for a in (q, k, v)), **options, dtype="float64", **parts)
        return exact if last is None else round_to(exact, last)

    return attend


def cut_weights(dtype: str) -> Attend:
    return in_doubles(dtype, weights=lambda s: cut_to(softmax(s), dtype).astype(np.float64))


def cut_scores(dtype: str) -> Attend:
    def scores(q: Array, k: Array, scale: float) -> Array:
        return cut_to(scores_of(q, k, scale), dtype).astype(np.float64)

    return in_doubles(dtype, scores=scores)


def cut_output(dtype: str) -> Attend:
    """float64 inside, and the result cut off."""

    exact = in_doubles()
    return lambda q, k, v, **options: cut_to(exact(q, k, v, **options), dtype)


def fast_exp(bits: int) -> Callable[[Array], Array]:
    """e^x as 2^(x log2 e), the fractional power interpolated linearly between places.

    The relative error is at most (ln 2/places)²/8, which is made 2^-bits.
    """
    places = np.log(2) / np.sqrt(8 * 2.0**-bits)

    def exp(x: Array) -> Array:
        with np.errstate(all="ignore"):
            y = np.asarray(x, dtype=np.float64) * np.log2(np.e)
            low = np.floor(y * places) / places
            between = (y - low) * places
            found = np.exp2(low) * (1 + between * (np.exp2(1 / places) - 1))
        return np.where(np.isneginf(x), 0, found).astype(x.dtype)

    return exp


def summed_scores(low: str) -> Callable[[str], Attend]:
    """q·k added up component by component in a narrow sum."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        total = np.zeros((*q.shape[:3], k.shape[2]), dtype=q.dtype)
        for c in range(q.shape[3]):
            total = round_to(total + q[..., c, None] * k[:, :, None, :, c], low).astype(q.dtype)
        return total * q.dtype.type(scale)

    return exchanged(scores=scores)


def statistics_in(low: str) -> Callable[[str], Attend]:
    """Online softmax whose running denominator is kept narrow between blocks."""
    return lambda dtype: partial(blocked, dtype=dtype, block=16, store_sum=rounder(low))


def output_kept_in(low: str) -> Callable[[str], Attend]:
    """Online softmax whose running output is kept narrow between blocks."""
    return lambda dtype: partial(blocked, dtype=dtype, block=16, store_output=rounder(low))


_AS_HONEST = "it is what an honest backend stores in this dtype, or finer"
_HALF = "2^-11 is an eighth of bfloat16's unit roundoff, within what honest weights are rounded to"
_CUT = (
    "cutting off shifts by u/(2 ln 2) = 0.72 u on average, as a constant (scale, log2 e, 1/l) that is rounded once "
    "in float32 does: up to 4 u of that are honest"
)

FAULTS = (
    Fault(
        "values added up in float16",
        exchanged(mix=in_sequence("float16", 8)),
        only_in(
            "float32", "float16", because="a float16 sum of 100 terms is still 3 bits finer than bfloat16"
        ),
    ),
    Fault("values added up in bfloat16", exchanged(mix=in_sequence("bfloat16", 8))),
    Fault("denominator added up in float16", exchanged(weights=sum_in("float16"))),
    Fault("denominator added up in bfloat16", exchanged(weights=sum_in("bfloat16"))),
    Fault("running denominator in bfloat16", statistics_in("bfloat16")),
    Fault("running output in bfloat16", output_kept_in("bfloat16")),
    Fault("q·k added up in bfloat16", summed_scores("bfloat16")),
    Fault(
        "q·k added up in float16",
        summed_scores("float16"),
        only_in(
            "float32",
            "float16",
            because="its roundings are an eighth of those that honest bfloat16 scores have",
        ),
    ),
    Fault("output cut off", cut_output),
    Fault("weights cut off", cut_weights, (("float32", _CUT),)),
    Fault("scores cut off", cut_scores, (("float32", _CUT),)),
    Fault(
        "fast exp, 2^-11",
        lambda dtype: partial(blocked, dtype=dtype, exp=fast_exp(11)),
        only_in("float32", "float16", because=_HALF),
    ),
    Fault("fast exp, 2^-6", lambda dtype: partial(blocked, dtype=dtype, exp=fast_exp(6))),
    Fault(
        "inputs cut to TF32",
        inputs_in(partial(cut, bits=11)),
        only_in("float32", because="float16 and bfloat16 inputs have no more bits than TF32 keeps"),
    ),
    Fault(
        "bfloat16 inside",
        inputs_in(rounder("bfloat16")),
        only_in("float32", "float16", because="bfloat16 inputs are bfloat16 already"),
    ),
    Fault("weights in float16", weights_in("float16"), only_in("float32", because=_AS_HONEST)),
    Fault("weights in bfloat16", weights_in("bfloat16"), only_in("float32", "float16", because=_AS_HONEST)),
    Fault(
        "weights in 8 bits",
        lambda dtype: partial(plain, dtype=dtype, weights=lambda s: cut(softmax(s) * (1 + 2.0**-4), 4)),
    ),
    Fault("scores in bfloat16", scores_in("bfloat16"), only_in("float32", "float16", because=_AS_HONEST)),
    Fault("scores in float16", scores_in("float16"), only_in("float32", because=_AS_HONEST)),
)
