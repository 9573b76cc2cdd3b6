"""Faults of one path: right everywhere but under one condition, as a kernel is that was compiled for one case.

Each is a condition and a deviation. What deviates is plain enough, for the most part one key that is lost: the
question is whether the condition is ever met. `attnlab.accuracy.coverage_questions` has a form for each.
"""

from __future__ import annotations

import numpy as np

from .fault import Fault, only_in
from .parts import blocked, rounder, softmax
from .paths import (
    always,
    by_cubic,
    cleared_behind,
    divided_late,
    dropped_below,
    flushed,
    from_the_end,
    from_the_start,
    heads_in_eights,
    in_two_bfloat16,
    kept_copy,
    key_strides_for_values,
    limited,
    maximum_rounded,
    on_inputs,
    one_call_in,
    outputs_in_turn,
    owner,
    place,
    products_limited,
    read_behind,
    reciprocal_in,
    room_behind,
    scaled_by,
    sum_limited,
    then,
    unweighted,
    where,
    whole,
    windowed,
    with_epsilon,
    with_parts,
    zero_after,
)

_HALF_RANGE = only_in(
    "float32", "bfloat16", because="float16 itself ends at 65504, and no input is beyond it"
)
_IN_FLOAT16 = "a relative error of {} is {} u of float16 and {} u of bfloat16: below what roundings hide"

FAULTS = (
    # one head_dim
    where("head_dim 2", lambda c: c.d == 2),
    where("head_dim 32, causal", lambda c: c.d == 32 and c.causal),
    where("head_dim 40", lambda c: c.d == 40),
    where("head_dim 48", lambda c: c.d == 48),
    where("head_dim 64, causal", lambda c: c.d == 64 and c.causal),
    where("head_dim 64, one query", lambda c: c.d == 64 and c.n_q == 1),
    where("head_dim 80, causal", lambda c: c.d == 80 and c.causal),
    where("head_dim 96", lambda c: c.d == 96),
    where("head_dim 112", lambda c: c.d == 112),
    where("head_dim 128, no mask", lambda c: c.d == 128 and not c.causal),
    where("head_dim 160", lambda c: c.d == 160),
    where("head_dim 256", lambda c: c.d == 256),
    where("head_dim above 128, causal", lambda c: c.d > 128 and c.d_v == c.d and c.causal),
    where("head_dim 512", lambda c: c.d >= 512),
    where("head_dim 192, value_dim 128", lambda c: c.d == 192 and c.d_v == 128),
    where("value_dim above head_dim, causal", lambda c: c.d_v > c.d and c.causal),
    # whole tiles, and few queries
    where("whole tiles of 128", lambda c: whole(128, c.n_q, c.n_k) and not c.causal),
    where("whole tiles of 128, causal", lambda c: whole(128, c.n_q, c.n_k) and c.causal),
    where("few queries, many keys, causal", lambda c: c.causal and 1 < c.n_q <= 16 and c.n_k > 64),
    where("one query, keys split, unweighted", lambda c: c.n_q == 1 and c.n_k >= 512, unweighted),
    where("one query, over 1024 keys of 128", lambda c: c.n_q == 1 and c.d == 128 and c.n_k > 1024),
    # scales
    where(
        "scale of a padded head_dim",
        lambda c: c.usual_scale and c.d > 64,
        scaled_by(lambda c: (c.d / (-(-c.d // 32) * 32)) ** 0.5),
    ),
    where(
        "0.2 % in scales of one's own",
        lambda c: not c.usual_scale and not np.log2(abs(c.scale)).is_integer(),
        scaled_by(lambda c: 1.002),
    ),
    where(
        "root of head_dim in bfloat16",
        lambda c: c.usual_scale,
        scaled_by(lambda c: c.d**0.5 / float(rounder("bfloat16")(np.float32(c.d**0.5)))),
    ),
    where("0.5 % in the scale, causal", lambda c: c.causal and c.d >= 64, scaled_by(lambda c: 1.005)),
    where(
        "gain of 1/256 from head_dim 128, no mask",
        lambda c: c.d >= 128 and not c.causal,
        with_parts(weights=lambda s: (softmax(s) * (1 + 2.0**-8)).astype(s.dtype)),
    ),
    where("scale above 1", lambda c: c.scale > 1),
    # how many
    where("12 heads", lambda c: c.h == 12),
    where("heads share keys by eight", lambda c: c.h % 16 == 0 and c.n_k > 2, heads_in_eights),
    where("24 heads, causal", lambda c: c.causal and c.h >= 16),
    where("over 64 heads", lambda c: c.h > 64),
    where("over 32 batches", lambda c: c.b > 32),
    where("over 512 heads and batches", lambda c: c.b * c.h > 512),
    where("over 65535 heads", lambda c: c.h > 65535),
    where(
        "an odd number of heads and batches, causal", lambda c: c.causal and c.b > 1 and c.b * c.h % 2 == 1
    ),
    where("three heads, over 128 queries", lambda c: c.b * c.h >= 3 and c.n_q > 128 and not c.causal),
    where("two heads, over 512 keys", lambda c: c.h >= 2 and c.n_k > 512 and c.n_q > 1),
    where("causal, over 128 more keys", lambda c: c.causal and c.n_k - c.n_q > 128 < c.n_q, from_the_end),
    where("causal, fewer keys, over 128", lambda c: c.causal and c.n_q > c.n_k > 150),
    where("causal, over 2048", lambda c: c.causal and min(c.n_q, c.n_k) > 2048),
    where("causal, window of 2048", lambda c: c.causal and c.n_k > 2048, windowed(2048)),
    where("keys counted in 16 bits", lambda c: c.n_k > 65535),
    where("rows counted in 15 bits", lambda c: c.n_q > 32767, zero_after(32768)),
    where("queries of over 2^20 numbers", lambda c: c.q.size > 2**20),
    # ranges
    always("values end at 65504", on_inputs(limited(65504.0), "v"), _HALF_RANGE),
    always("values below 2^-14 flushed", on_inputs(flushed(2.0**-14), "v")),
    always(
        "outputs below 2^-60 flushed",
        then(flushed(2.0**-60)),
        only_in("float32", "bfloat16", because="float16 has no number but 0 below 2^-24"),
    ),
    always("outputs end at 448", then(limited(448.0))),
    always("unnormalised outputs end at 65504", divided_late),
    always("queries end at 65504", on_inputs(limited(65504.0), "q"), _HALF_RANGE),
    always("queries below 2^-14 flushed", on_inputs(flushed(2.0**-14), "q")),
    where(
        "products without a mask end at 65504",
        lambda c: not c.causal,
        with_parts(scores=products_limited),
        only_in(
            "float32", "bfloat16", because="float16 eager backends end there too, so none is asked for more"
        ),
    ),
    always("maximum in bfloat16", with_parts(weights=maximum_rounded)),
    always("denominator ends at 2048", sum_limited(2048.0, 2048.0)),
    always("denominator infinite from 65504", sum_limited(65504.0, np.inf)),
    always("rises by 0.01 not rescaled", with_parts(blocked, block=16, forget_rise=0.01)),
    # memory
    where("keys transposed alone", lambda c: c.k.strides[3] > c.k.itemsize == c.q.strides[3]),
    where("keys' strides for the values", lambda c: c.v.shape == c.k.shape, key_strides_for_values),
    where("values heads inside alone", lambda c: c.k.flags.c_contiguous and not c.v.flags.c_contiguous),
    where("keys read from the start of memory", lambda c: place(c.k) > 0, from_the_start),
    where("packed taken for one array", lambda c: owner(c.q) is owner(c.k) and c.n_k > 1),
    where("reads behind the values", room_behind, read_behind),
    where("clears behind the values", room_behind, cleared_behind),
    where("one batch for all", lambda c: c.b > 1 and c.k.strides[0] == 0),
    where("one head for all, one key over 32", lambda c: c.k.strides[1] == 0 and c.n_k % 32 == 1),
    where("one query, heads inside", lambda c: c.n_q == 1 and c.h > 1 and c.q.strides[2] > c.q.strides[1]),
    Fault("copy of the query kept", kept_copy(0)),
    Fault("copy of the keys kept", kept_copy(1)),
    Fault("two outputs in turn", outputs_in_turn(2)),
    Fault("three outputs in turn", outputs_in_turn(3)),
    Fault("one call in ten, several blocks", one_call_in(10)),
    # below sight in the coarser formats
    always(
        "log2 e as 1.4427",
        scaled_by(lambda c: 1.4427 / 1.4426950408889634),
        only_in("float32", because=_IN_FLOAT16.format("3.4e-6", "0.007", "0.0009")),
    ),
    always(
        "log2 e in float16",
        scaled_by(lambda c: 1.4423828125 / 1.4426950408889634),
        only_in("float32", "float16", because="2.2e-4 is 0.06 u of bfloat16, and an eighth is immaterial"),
    ),
    always(
        "2^x by a cubic",
        with_parts(weights=by_cubic),
        only_in("float32", because=_IN_FLOAT16.format("1e-4", "0.2", "0.03")),
    ),
    always(
        "1/l in float16",
        reciprocal_in("float16"),
        only_in("float32", because="it is rounded once a row, as the output is for each of its numbers"),
    ),
    always(
        "1/l in bfloat16",
        reciprocal_in("bfloat16"),
        only_in("float32", "float16", because="it is rounded once a row, as the output is for each number"),
    ),
    always(
        "1e-5 in the denominator",
        with_parts(weights=with_epsilon),
        only_in("float32", because="with l >= 1 it takes 1e-5 of an output at most: 0.02 u of float16"),
    ),
    always(
        "weights below 1e-6 dropped",
        dropped_below(1e-6),
        only_in(
            "float32",
            because="in 65539 keys 18 000 are dropped, of 4e-7 each, and their random values add up to 6e-5: 0.1 % of "
            "an output of 0.07, where scores that are rounded to either format cost as much",
        ),
    ),
    always(
        "inputs in two bfloat16",
        with_parts(scores=in_two_bfloat16),
        only_in("float32", because="float16 has 11 bits and bfloat16 8: two bfloat16 hold them to the last"),
    ),
)
