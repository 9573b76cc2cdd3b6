"""Faults of precision: accumulators, weights and inputs narrower than the dtype, cutting off, fast functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.gate.evidence import CONSTANTS, SLACK
from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Problem
from attnlab.theory.numbers import ROUNDING_RMS

from .fault import (
    BACKWARD,
    FORWARD,
    Excuse,
    Fault,
    back,
    excused,
    given,
    scattered_by,
    shifted_by,
    stored_in,
    unit,
)
from .parts import (
    DK,
    DV,
    OUTPUT,
    Answers,
    Array,
    Attention,
    Memory,
    added_up,
    cut,
    cut_to,
    exponentials,
    from_output,
    from_weights,
    in_blocks,
    in_sequence,
    parted,
    products_of,
    quiet_back,
    remembering,
    rounder,
    scaled,
    scores_of,
    slopes_of,
    softmax,
    stored_sums,
    sum_in,
    whole,
)

INPUTS = ("query", "key", "value", "output_gradient")
Store = Callable[[Array], Array]


def in_doubles(
    parts: Callable[[Store], dict[str, Any]] = lambda off: {}, last: Callable[[Array, str], Array] = round_to
) -> Attention:
    """The formula in float64 with parts(cutting off to the dtype) exchanged, and `last` of what they are of."""

    def attend(problem: Problem) -> Answers:
        dtype, wide = problem.dtype, narrowed(lambda x: x.astype(np.float64), *INPUTS)(problem)
        exact = whole(wide, "float64", **parts(lambda x: cut_to(x, dtype).astype(np.float64)))
        return {name: last(one, dtype) for name, one in exact.items()}

    return attend


def narrowed(low: Callable[[Array], Array], *names: str) -> Callable[[Problem], Problem]:
    """Some of the inputs narrowed."""

    def change(problem: Problem) -> Problem:
        found = {name: getattr(problem, name) for name in names}
        return problem.with_(**{name: low(one) for name, one in found.items() if one is not None})

    return change


def fast_exp(bits: int) -> Callable[[Array], Array]:
    """e^x as 2^(x log2 e), the fractional power interpolated linearly between places.

    The relative error is at most (ln 2/places)²/8, which is made 2^-bits.
    """
    places = np.log(2) / np.sqrt(8 * 2.0**-bits)

    def exp(x: Array) -> Array:
        with np.errstate(all="ignore"):
            y = np.asarray(x, dtype=np.float64) * np.log2(np.e)
            low = np.floor(y * places) / places
            found = np.exp2(low) * (1 + (y - low) * places * (np.exp2(1 / places) - 1))
        return np.where(np.isneginf(x), 0, found).astype(x.dtype)

    return exp


def summed_scores(low: str) -> Callable[[Array, Array, float], Array]:
    """q·k added up component by component in a narrow sum."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        terms = (q[..., c, None] * k[:, :, None, :, c] for c in range(q.shape[3]))
        return added_up(terms, low) * q.dtype.type(scale)

    return scores


def offset_summed_in(low: str) -> Callable[..., Array]:
    """g·o added up component by component in a narrow sum."""
    return lambda p, a, g, o: added_up(np.moveaxis((g * o)[..., None], -2, 0), low)


def in_two_bfloat16(q: Array, k: Array, scale: float) -> Array:
    """Numbers as sums of two bfloat16, the product of the two small parts left out."""
    store = rounder("bfloat16")
    high = [store(a) for a in (q, k.swapaxes(-1, -2))]
    low = [store(a - b) for a, b in zip((q, k.swapaxes(-1, -2)), high, strict=True)]
    return (high[0] @ high[1] + high[0] @ low[1] + low[0] @ high[1]) * q.dtype.type(scale)


@remembering
def noisy(memory: Memory, units: float, name: str, problem: Problem) -> Answers:
    """An answer is off by random relative errors of so many unit roundoffs."""
    rng, found = memory.setdefault("rng", np.random.default_rng(0)), whole(problem)
    if name in found:
        x, u = found[name].astype(np.float64), units * unit(problem.dtype)
        found[name] = round_to(x * (1 + u * rng.standard_normal(x.shape)), problem.dtype)
    return found


def in_eight_bits(p: Array) -> Array:
    return cut(p * (1 + 2.0**-4), 4)


def chain(low: str, steps: int, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused where a sum of so many partial sums, rounded to `low`, is still finer than one rounding of the dtype."""
    return scattered_by(ROUNDING_RMS * unit(low) * (steps / 3) ** 0.5, why)


#: cut off instead of rounded, a number shifts by u/(2 ln 2) on average
_CUT = excused(
    "float32",
    unit("float32") / (2 * np.log(2)),
    CONSTANTS * unit("float32"),
    "the mean shift of numbers that are cut off, against constants that are rounded once for all rows",
)
#: u/√(Σ) of what a float32 pass has of its own: exp, product, sum and division; and, backwards, D and T as well
_NOISE = excused(
    "float32",
    1.0 * unit("float32"),
    SLACK * 2 * ROUNDING_RMS * unit("float32"),
    "exp, product, sum and division round at the dtype's own u: the square root of 4 roundings, with the slack",
)
_BELOW = "another number in every row or weight, and below what one rounding of the dtype scatters"
_BITS = "the inputs have no more bits than that"


def _exact_in(low: int) -> tuple[tuple[str, Excuse], ...]:
    """Excused where inputs of the dtype have no more than `low` bits: nothing is lost."""
    bits = {"float16": 11, "bfloat16": 8}
    return tuple((one, Excuse(bits[one], low, _BITS)) for one in bits if bits[one] <= low)


_STORED: tuple[tuple[str, str, Callable[[Store], dict[str, Any]]], ...] = (
    ("weights", FORWARD, lambda low: {"weights": lambda s: low(softmax(s))}),
    (
        "1/l",
        FORWARD,
        lambda low: {"weights": lambda s: (e := exponentials(s)) * low(1 / e.sum(-1, keepdims=True))},
    ),
    ("scores", FORWARD, lambda low: {"scores": lambda q, k, scale: low(scores_of(q, k, scale))}),
    ("P", BACKWARD, lambda low: {"for_value": low}),
    ("T", BACKWARD, lambda low: {"times": lambda t, scale: scaled(low(t), scale)}),
    ("A", BACKWARD, lambda low: {"products": lambda g, v: low(products_of(g, v))}),
    ("D", BACKWARD, lambda low: {"offset": lambda *given: low(from_weights(*given))}),
    ("output for D", BACKWARD, lambda low: {"offset": from_output, "save": low}),
    ("scores again", BACKWARD, lambda low: {"again": lambda q, k, scale: low(scores_of(q, k, scale))}),
)

_CUT_OFF: tuple[tuple[str, str, Callable[[Store], dict[str, Any]]], ...] = (
    ("weights cut off", FORWARD, lambda off: {"weights": lambda s: off(softmax(s))}),
    ("scores cut off", FORWARD, lambda off: {"scores": lambda q, k, c: off(scores_of(q, k, c))}),
    ("P cut off in dv", BACKWARD, lambda off: {"for_value": off}),
    ("T cut off", BACKWARD, lambda off: {"slopes": lambda p, a, d: off(slopes_of(p, a, d))}),
    ("gradients cut off", BACKWARD, lambda off: {"last_back": lambda x, _: off(x)}),
)

FAULTS = (
    *(
        Fault(f"{what} in {low}", parted(**parts(rounder(low))), direction, stored_in(low))
        for what, direction, parts in _STORED
        for low in ("float16", "bfloat16")
    ),
    Fault("weights in 8 bits", parted(weights=lambda s: in_eight_bits(softmax(s)))),
    Fault("P in 8 bits", parted(for_value=in_eight_bits), BACKWARD),
    Fault(
        "values added up in float16",
        parted(mix=in_sequence("float16", 8)),
        excuses=chain("float16", 16, "a float16 sum of 16 parts is finer than one rounding to bfloat16"),
    ),
    Fault("values added up in bfloat16", parted(mix=in_sequence("bfloat16", 8))),
    Fault("denominator added up in float16", parted(weights=sum_in("float16"))),
    Fault("denominator added up in bfloat16", parted(weights=sum_in("bfloat16"))),
    Fault("running denominator in bfloat16", in_blocks(block=16, store_sum=rounder("bfloat16"))),
    Fault("running output in bfloat16", in_blocks(block=16, store_output=rounder("bfloat16"))),
    Fault("q·k added up in bfloat16", parted(scores=summed_scores("bfloat16"))),
    Fault(
        "q·k added up in float16",
        parted(scores=summed_scores("float16")),
        excuses=chain("float16", 16, "16 terms rounded to float16 are finer than honest bfloat16 scores"),
    ),
    Fault("output cut off", in_doubles(last=cut_to)),
    *(Fault(what, in_doubles(parts), direction, _CUT) for what, direction, parts in _CUT_OFF),
    Fault("fast exp, 2^-11", in_blocks(exp=fast_exp(11)), excuses=scattered_by(2.0**-11, _BELOW)),
    Fault("fast exp, 2^-6", in_blocks(exp=fast_exp(6))),
    Fault("fast exp again, 2^-6", quiet_back(exp=fast_exp(6)), BACKWARD),
    Fault("inputs cut to TF32", given(narrowed(lambda x: cut(x, 11), *INPUTS[:3])), excuses=_exact_in(11)),
    Fault("bfloat16 inside", given(narrowed(rounder("bfloat16"), *INPUTS[:3])), excuses=_exact_in(8)),
    Fault("inputs in two bfloat16", parted(scores=in_two_bfloat16), excuses=_exact_in(16)),
    Fault(
        "TF32 on the way back", back(given(narrowed(lambda x: cut(x, 11), *INPUTS))), BACKWARD, _exact_in(11)
    ),
    Fault(
        "output gradient in bfloat16",
        back(given(narrowed(rounder("bfloat16"), "output_gradient"))),
        BACKWARD,
        _exact_in(8),
    ),
    Fault(
        "1e-5 in the denominator",
        parted(weights=lambda s: exponentials(s) / (exponentials(s).sum(axis=-1, keepdims=True) + 1e-5)),
        excuses=shifted_by(1e-5, "with l >= 1 it takes that part of an output at most"),
    ),
    Fault(
        "log2 e as 1.4427",
        parted(scores=lambda q, k, scale: scores_of(q, k, scale * 1.4427 / 1.4426950408889634)),
        excuses=shifted_by(1 - 1.4426950408889634 / 1.4427, "a scale that is large by this part"),
    ),
    Fault("noise of 3 u", noisy(3.0, OUTPUT)),
    Fault("noise of 1 u", noisy(1.0, OUTPUT), excuses=_NOISE),
    Fault("dv: noise of 3 u", noisy(3.0, DV), BACKWARD),
    Fault("dk: noise of 1 u", noisy(1.0, DK), BACKWARD, _NOISE),
    Fault(
        "D added up in bfloat16", parted(offset=offset_summed_in("bfloat16")), BACKWARD, stored_in("bfloat16")
    ),
    Fault(
        "ln Z in bfloat16", quiet_back(save_logs=lambda top, log: rounder("bfloat16")(top + log)), BACKWARD
    ),
    Fault("sums over queries in float16", quiet_back(block=4, add=stored_sums("float16")), BACKWARD),
    Fault("sums over queries in bfloat16", quiet_back(block=4, add=stored_sums("bfloat16")), BACKWARD),
    Fault("sums term after term in bfloat16", parted(mix_back=in_sequence("bfloat16")), BACKWARD),
    Fault("dq: stored in bfloat16", parted(for_query=rounder("bfloat16")), BACKWARD, stored_in("bfloat16")),
)
