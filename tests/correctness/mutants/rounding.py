"""Right implementations that differ in how they round, which must all pass, and faults of precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from attnlab.correctness.error_budget import ROUNDING_RMS
from attnlab.correctness.weighing import CONSTANTS, SLACK
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import round_to

from . import fault, parts
from .fault import BACKWARD, FORWARD, Excuse, Fault, given, inputs, unit
from .formula import with_more
from .parts import DK, DV, OUTPUT, Answers, Array, Attention, after, cut, parted, rounder, scores_of, whole

INPUTS = ("query", "key", "value", "output_gradient")
Store = Callable[[Array], Array]
BF16 = rounder("bfloat16")
TF32, EIGHT_BITS = partial(cut, bits=11), lambda p: cut(p * (1 + 2.0**-4), 4)
#: from a rounding function to the parts of `whole` that are exchanged
Exchanged = Callable[[Store], dict[str, Any]]


def in_doubles(
    exchanged: Exchanged = lambda off: {}, last: Callable[[Array, str], Array] = round_to
) -> Attention:
    """The formula in float64, with parts exchanged, and the answers rounded by `last`.

    exchanged : from a function that truncates to the dtype, the parts with it.
    """

    def attend(problem: Inputs) -> Answers:
        dtype, wide = problem.dtype, inputs(lambda x: x.astype(np.float64), *INPUTS)(problem)
        exact = whole(wide, "float64", **exchanged(lambda x: parts.cut_to(x, dtype).astype(np.float64)))
        return {name: last(one, dtype) for name, one in exact.items()}

    return attend


def fast_exp(bits: int) -> Callable[[Array], Array]:
    """e^x as 2^(x log2 e), with the fractional power interpolated linearly between `places` points.

    The relative error is at most (ln 2/places)²/8, which equals 2^-bits.
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
    """q·k added up component by component, in a sum that is rounded to `low`."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        terms = (q[..., c, None] * k[:, :, None, :, c] for c in range(q.shape[3]))
        return parts.added_up(terms, low) * q.dtype.type(scale)

    return scores


def offset_in_bfloat16(p: Array, a: Array, g: Array, o: Array) -> Array:
    """g·o added up component by component, in a sum that is rounded to bfloat16."""
    return parts.added_up(np.moveaxis((g * o)[..., None], -2, 0), "bfloat16")


def with_coarse_log2_e(q: Array, k: Array, scale: float) -> Array:
    """The scores for 2^x with 1.4427 in place of log2 e."""
    return scores_of(q, k, scale * 1.4427 / 1.4426950408889634)


def in_two_bfloat16(q: Array, k: Array, scale: float) -> Array:
    """Each number is a sum of two bfloat16 numbers; the product of the two small parts is left out."""
    high = [BF16(a) for a in (q, k.swapaxes(-1, -2))]
    low = [BF16(a - b) for a, b in zip((q, k.swapaxes(-1, -2)), high, strict=True)]
    return (high[0] @ high[1] + high[0] @ low[1] + low[0] @ high[1]) * q.dtype.type(scale)


@parts.remembering
def noisy(memory: parts.Memory, units: float, name: str, problem: Inputs) -> Answers:
    """One answer has random relative errors of `units` unit roundoffs."""
    rng, found = memory.setdefault("rng", np.random.default_rng(0)), whole(problem)
    if name in found:
        x, u = found[name].astype(np.float64), units * unit(problem.dtype)
        found[name] = round_to(x * (1 + u * rng.standard_normal(x.shape)), problem.dtype)
    return found


def times_inverse(low: Store) -> Callable[[Array], Array]:
    """Softmax that multiplies by low(1/l), with l the sum of the exponentials."""
    return lambda s: (e := parts.exponentials(s)) * low(1 / e.sum(axis=-1, keepdims=True))


def chain(why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused if a sum of 16 partial sums, rounded to float16, is more exact than one rounding to the dtype."""
    return fault.scattered_by(ROUNDING_RMS * unit("float16") * (16 / 3) ** 0.5, why)


_PARTS = "a float16 sum of 16 parts is finer than one rounding to bfloat16"
_TERMS = "16 terms rounded to float16 are finer than honest bfloat16 scores"


#: a number that is truncated instead of rounded is shifted by u/(2 ln 2) on average
_CUT = fault.excused(
    "float32",
    unit("float32") / (2 * np.log(2)),
    CONSTANTS * unit("float32"),
    "the mean shift of numbers that are cut off, against constants that are rounded once for all rows",
)
#: noise of 1 u is within the errors of a float32 pass: exp, product, sum and division; backwards also D and T
_NOISE = fault.excused(
    "float32",
    1.0 * unit("float32"),
    SLACK * 2 * ROUNDING_RMS * unit("float32"),
    "exp, product, sum and division round at the dtype's own u: the square root of 4 roundings, with the slack",
)
_EPS = fault.shifted_by(1e-5, "with l >= 1 it takes that part of an output at most")
_LOG2_E = fault.shifted_by(1 - 1.4426950408889634 / 1.4427, "a scale that is large by this part")
_BELOW = "another number in every row or weight, and below what one rounding of the dtype scatters"
_BITS = "the inputs have no more bits than that"


def _exact_in(low: int) -> tuple[tuple[str, Excuse], ...]:
    """Excused if inputs of the dtype have at most `low` bits, so that nothing is lost."""
    bits = {"float16": 11, "bfloat16": 8}
    return tuple((one, Excuse(bits[one], low, _BITS)) for one in bits if bits[one] <= low)


_STORED: dict[str, tuple[str, Exchanged]] = {
    "weights": (FORWARD, lambda low: {"weights": after(parts.softmax, low)}),
    "1/l": (FORWARD, lambda low: {"weights": times_inverse(low)}),
    "scores": (FORWARD, lambda low: {"scores": after(scores_of, low)}),
    "P": (BACKWARD, lambda low: {"for_value": low}),
    "T": (BACKWARD, lambda low: {"times": lambda t, scale: parts.scaled(low(t), scale)}),
    "A": (BACKWARD, lambda low: {"products": after(parts.products_of, low)}),
    "D": (BACKWARD, lambda low: {"offset": after(parts.from_weights, low)}),
    "output for D": (BACKWARD, lambda low: {"offset": parts.from_output, "save": low}),
    "scores again": (BACKWARD, lambda low: {"again": after(scores_of, low)}),
}
#: what is truncated to the dtype, not rounded: by its name in `_STORED` the name of the fault
_CUT_OFF = {"weights": "weights cut off", "scores": "scores cut off"}
_CUT_OFF |= {"P": "P cut off in dv", "T": "T cut off"}

PRECISION = (
    *(
        Fault(f"{what} in {low}", parted(**exchanged(rounder(low))), direction, fault.stored_in(low))
        for what, (direction, exchanged) in _STORED.items()
        for low in ("float16", "bfloat16")
    ),
    Fault("weights in 8 bits", parted(weights=after(parts.softmax, EIGHT_BITS))),
    Fault("P in 8 bits", parted(for_value=EIGHT_BITS), BACKWARD),
    Fault("values added up in float16", parted(mix=parts.in_sequence("float16", 8)), excuses=chain(_PARTS)),
    Fault("values added up in bfloat16", parted(mix=parts.in_sequence("bfloat16", 8))),
    Fault("denominator added up in float16", parted(weights=parts.sum_in("float16"))),
    Fault("denominator added up in bfloat16", parted(weights=parts.sum_in("bfloat16"))),
    Fault("running denominator in bfloat16", parts.in_blocks(block=16, store_sum=BF16)),
    Fault("running output in bfloat16", parts.in_blocks(block=16, store_output=BF16)),
    Fault("q·k added up in bfloat16", parted(scores=summed_scores("bfloat16"))),
    Fault("q·k added up in float16", parted(scores=summed_scores("float16")), excuses=chain(_TERMS)),
    Fault("output cut off", in_doubles(last=parts.cut_to)),
    *(Fault(name, in_doubles(_STORED[what][1]), _STORED[what][0], _CUT) for what, name in _CUT_OFF.items()),
    Fault("gradients cut off", in_doubles(lambda off: {"last_back": lambda x, _: off(x)}), BACKWARD, _CUT),
    Fault("fast exp, 2^-11", parts.in_blocks(exp=fast_exp(11)), excuses=fault.scattered_by(2.0**-11, _BELOW)),
    Fault("fast exp, 2^-6", parts.in_blocks(exp=fast_exp(6))),
    Fault("fast exp again, 2^-6", parts.quiet_back(exp=fast_exp(6)), BACKWARD),
    Fault("inputs cut to TF32", given(inputs(TF32, *INPUTS[:3])), excuses=_exact_in(11)),
    Fault("bfloat16 inside", given(inputs(BF16, *INPUTS[:3])), excuses=_exact_in(8)),
    Fault("inputs in two bfloat16", parted(scores=in_two_bfloat16), excuses=_exact_in(16)),
    Fault("TF32 on the way back", fault.back(given(inputs(TF32, *INPUTS))), BACKWARD, _exact_in(11)),
    Fault("output gradient in bfloat16", fault.back(given(inputs(BF16, INPUTS[3]))), BACKWARD, _exact_in(8)),
    Fault("1e-5 in the denominator", parted(weights=with_more(lambda s: 1e-5)), excuses=_EPS),
    Fault("log2 e as 1.4427", parted(scores=with_coarse_log2_e), excuses=_LOG2_E),
    Fault("noise of 3 u", noisy(3.0, OUTPUT)),
    Fault("noise of 1 u", noisy(1.0, OUTPUT), excuses=_NOISE),
    Fault("dv: noise of 3 u", noisy(3.0, DV), BACKWARD),
    Fault("dk: noise of 1 u", noisy(1.0, DK), BACKWARD, _NOISE),
    Fault("D added up in bfloat16", parted(offset=offset_in_bfloat16), BACKWARD, fault.stored_in("bfloat16")),
    Fault("ln Z in bfloat16", parts.quiet_back(save_logs=after(np.add, BF16)), BACKWARD),
    *(
        Fault(f"sums over queries in {low}", parts.quiet_back(block=4, add=parts.stored_sums(low)), BACKWARD)
        for low in ("float16", "bfloat16")
    ),
    Fault("sums term after term in bfloat16", parted(mix_back=parts.in_sequence("bfloat16")), BACKWARD),
    Fault("dq: stored in bfloat16", parted(for_query=BF16), BACKWARD, fault.stored_in("bfloat16")),
)


# -- right implementations, outputs and gradients


def eager(problem: Inputs) -> Answers:
    """Every step is stored in the dtype, as in unfused code with automatic differentiation."""
    store = rounder(problem.dtype)

    def compose(s: Array, problem: Inputs) -> Array:
        cap, added = problem.softcap, problem.bias_array
        if cap is not None:
            s = store(store(np.tanh(store(s / s.dtype.type(cap)))) * s.dtype.type(cap))
        return s if added is None else store(s + store(added.astype(s.dtype)))

    return whole(
        problem,
        scores=lambda q, k, scale: store(store(q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)),
        compose=compose,
        weights=lambda s: store(parts.softmax(s)),
        products=lambda g, v: store(g @ v.swapaxes(-1, -2)),
        slopes=lambda p, a, d: store(parts.slopes_of(p, a, d)),
        times=lambda t, scale: store(parts.scaled(store(t), scale)),
    )


def weighted(weights: Callable[[Array, Store], Array]) -> Attention:
    """An attention whose weights are weights(scores, a function that rounds to the dtype)."""
    return lambda problem: whole(problem, weights=lambda s: weights(s, rounder(problem.dtype)))


def top_of(s: Array) -> Array:
    """The largest score of a row, or 0 if the row sees no key."""
    top = s.max(axis=-1, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def written_out(s: Array, store: Store) -> Array:
    """Softmax with every step of the formula stored: s, s − m, e^{s − m}, the sum, the quotient."""
    s = store(s)
    e = store(np.exp(store(s - top_of(s))))
    total = e.sum(axis=-1, keepdims=True)
    return store(e / np.where(total < 65504, store(total), total))  # more would overflow float16


def powers_of_two(s: Array, store: Store) -> Array:
    """Softmax with 2^(s log2 e), as in GPU kernels."""
    x = s * s.dtype.type(np.log2(np.e))
    return parts.divided(np.exp2(x - top_of(x)))


def two_passes(one_number: bool) -> Callable[[Array], Array]:
    """First the log-sum-exp, then e^{(s − m) − ln l}, or e^{s − ln Z} with ln Z = m + ln l: no division."""

    def weights(s: Array) -> Array:
        top = top_of(s)
        log_sum = np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
        return np.exp(s - (top + log_sum) if one_number else (s - top) - log_sum)

    return weights


def fused(
    block: int, *, exact: bool = False, sums: bool = False, lazy: float = 0.0, **back: Any
) -> Attention:
    """Online softmax, with unnormalised weights, P and T stored in the dtype, as in a flash kernel.

    exact : nothing inside is rounded. sums : the gradients are stored in the dtype while they are added up.
    """

    def attend(problem: Inputs) -> Answers:
        store = parts.same if exact else rounder(problem.dtype)
        kept: dict[str, Any] = {"save": parts.same} if exact else {}
        kept |= {"add": parts.stored_sums(problem.dtype)} if sums else {}
        forward = parts.blocked(problem.with_(output_gradient=None), block=block, store=store, lazy=lazy)
        if problem.output_gradient is None:
            return forward
        with np.errstate(all="ignore"):
            return parts.blocked_back(problem, block=block, store=store, **kept, **back) | forward

    return attend


def folded(split: Callable[[float], tuple[float, float]]) -> Attention:
    """Query and key are multiplied by the two factors split(scale), and stored in the dtype again."""

    def attend(problem: Inputs) -> Answers:
        inner, store = parts.inner_of(problem.dtype), rounder(problem.dtype)
        of_query, of_key = (inner(one) for one in split(problem.scale))
        query, key = store(problem.query.astype(inner) * of_query), store(problem.key.astype(inner) * of_key)
        found = whole(problem.with_(query=query, key=key, scale=1.0), last_back=lambda x, _: x)
        factors = {"query gradient": of_query, "key gradient": of_key}
        back = {name: round_to(one * factors.get(name, 1), problem.dtype) for name, one in found.items()}
        return back | {OUTPUT: found[OUTPUT]}

    return attend


def halves(scale: float) -> tuple[float, float]:
    """The square root of the scale as both factors, as in PyTorch's math kernel."""
    return float(np.sign(scale)) * abs(scale) ** 0.5, abs(scale) ** 0.5


def one_by_one(problem: Inputs) -> Answers:
    """Weights and values are added up key by key: the longest chain of roundings that a sum can have."""
    inner = "float64" if problem.dtype == "float64" else "float32"
    mix = parts.in_sequence(inner, 1)
    return whole(problem, weights=parts.sum_in(inner), mix=mix, mix_back=mix)


def merged(*shares: float, one_number: bool = False) -> Attention:
    """The keys are split at `shares` of them, and the parts merged by their partition functions: split-k decoding.

    one_number : ln Z is stored as m + ln l, else as two numbers.
    """

    @np.errstate(all="ignore")
    def attend(problem: Inputs) -> Answers:
        inner, n = parts.inner_of(problem.dtype), problem.shape.keys
        outputs, tops, logs = [], [], []
        ends = sorted({0, *(round(share * n) for share in shares), n})
        for start, stop in pairwise(ends):
            among = Given((np.arange(n) >= start) & (np.arange(n) < stop))
            part = problem.with_(mask=problem.mask & Mask((among,)), sinks=None if start else problem.sinks)
            q, k, v = (x.astype(inner) for x in (part.query, part.key, part.value))
            k, v = parts.repeated(k, part.group), parts.repeated(v, part.group)
            s = parts.hide(parts.composed(scores_of(q, k, part.scale), part), parts.visible(part))
            s = parts.with_sink(s, part)
            top = s.max(axis=-1, keepdims=True)
            top = np.where(np.isneginf(top), inner(np.finfo(inner).min / 2), top)
            e = np.exp(s - top)
            total = e.sum(axis=-1, keepdims=True)
            outputs.append(e[..., : k.shape[2]] @ v / np.where(total > 0, total, 1))
            tops.append(top + np.log(total) if one_number else top)
            logs.append(np.zeros_like(total) if one_number else np.log(total))
        highest = np.maximum.reduce(tops)
        factors = [np.exp((top - highest) + log) for top, log in zip(tops, logs, strict=True)]
        total = sum(factor * output for factor, output in zip(factors, outputs, strict=True))
        output = parts.zeros_where_empty(total / sum(factors), parts.visible(problem))
        return whole(problem) | {OUTPUT: round_to(output, problem.dtype)}

    return attend


def smoothed_keys(problem: Inputs) -> Answers:
    """Subtract the mean key from all keys: all scores of a row shift equally. Not done with a cap or with sinks."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        return scores_of(q, k - k.mean(axis=2, keepdims=True), scale)

    alike = problem.softcap is None and problem.sinks is None
    return whole(problem, scores=scores if alike else scores_of)


def half_away(x: Array, dtype: str) -> Array:
    """Halves are rounded away from zero, not to even. After float32 arithmetic halves are rare."""
    bits = {"float16": 13, "bfloat16": 16}.get(dtype)
    if bits is None:
        return round_to(x, dtype)
    up = x.astype(np.float32).view(np.uint32) + np.uint32(1 << (bits - 1))
    return round_to((up & np.uint32(-1 << bits & 0xFFFFFFFF)).view(np.float32), dtype)


def sink_as_key(problem: Inputs) -> Answers:
    """A sink is one more key 0, with the value 0 and the sink as its bias. Bias and mask are one array each."""
    found = whole(problem.without_sinks())
    keys = problem.shape.keys
    return found | {name: found[name][:, :, :keys] for name in (DK, DV) if name in found}


def heads_written_out(problem: Inputs) -> Answers:
    """Heads of key and value are repeated in memory, and their gradients are rounded before they are summed."""
    store = rounder(problem.dtype)
    return whole(problem, gather=lambda x, group: parts.summed(store(x), group))


def cap_by_exponentials(s: Array, problem: Inputs) -> Array:
    """tanh |x| as (1 − e^{−2|x|})/(1 + e^{−2|x|}), with the sign restored."""
    cap = problem.softcap
    if cap is not None:
        e = np.exp(-2 * np.abs(s / s.dtype.type(cap)))
        s = np.asarray(s.dtype.type(cap) * np.sign(s) * -np.expm1(np.log(e)) / (1 + e))
    return parts.composed(s, problem.with_(softcap=None))


RIGHT: dict[str, Attention] = {
    "scores rounded": eager,
    "softmax written out": weighted(written_out),
    "hidden scores are -10^9": parted(hidden=-1e9),
    "weights rounded": weighted(lambda s, store: store(parts.softmax(s))),
    "fused, blocks of 16": fused(16),
    "fused, blocks of 64": fused(64),
    "fused, blocks of 100": fused(100),
    "float32 inside, blocks of 32": fused(32, exact=True),
    "partial sums of 32 stored": fused(32, sums=True),
    # atomic additions may come in any order
    "last block first": fused(
        32, order=lambda n_q, n_k: ((i, j) for i in reversed(range(n_q)) for j in reversed(range(n_k)))
    ),
    "queries outside": fused(32, order=lambda n_q, n_k: ((i, j) for i in range(n_q) for j in range(n_k))),
    "lazy maximum": fused(32, lazy=8 * float(np.log(2))),
    "float64 inside": in_doubles(),
    "exp2": weighted(powers_of_two),
    "scaled query": folded(lambda scale: (scale, 1.0)),
    "scaled keys": folded(lambda scale: (1.0, scale)),
    "root of the scale": folded(halves),
    "one key after another": one_by_one,
    "merged halves": merged(1 / 2, one_number=True),
    "three uneven splits": merged(0.2, 0.6),
    "mean key subtracted": smoothed_keys,
    "two passes": parted(weights=two_passes(one_number=False)),
    "two passes, ln Z in one number": parted(weights=two_passes(one_number=True)),
    "D from the output": parted(offset=parts.from_output),
    "D from the output, rounded": lambda p: whole(p, offset=parts.from_output, save=rounder(p.dtype)),
    "half away from zero": parted(last=half_away),
    # the stored weights sum to 1 again
    "sum of stored weights": weighted(lambda s, store: parts.divided(store(parts.exponentials(s)))),
    "sink as a key": sink_as_key,
    "heads written out": heads_written_out,
    "tanh by exponentials": parted(compose=cap_by_exponentials),
}
