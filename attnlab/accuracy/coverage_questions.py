"""More questions: what a fault may depend on that no formula mentions.

A kernel is compiled once for every head_dim it serves, has another path for whole tiles, for one query and for many
keys, reads arrays by their strides and counts in 16 bits. A fault in one of these does not show in the others, so
that each has a form of its own: the smallest that takes the path. Asked after those of `questions`.
"""

from __future__ import annotations

from attnlab.accuracy.evidence import DIRECTED_SHARED
from attnlab.accuracy.form import Form

#: a kernel for each head_dim, with whole tiles and with ragged ones, causal or not
KERNEL_FORMS = (
    Form(name="kernel 2, ragged, causal", batch=2, heads=1, queries=150, keys=141, dim=2, causal=True),
    Form(name="kernel 32, ragged, causal", batch=2, heads=1, queries=150, keys=141, dim=32, causal=True),
    Form(name="kernel 40, ragged", batch=2, heads=1, queries=150, keys=141, dim=40),
    Form(name="kernel 64, whole tiles, causal", queries=128, keys=128, dim=64, causal=True),
    Form(name="kernel 96, few queries, causal", queries=12, keys=321, dim=96, causal=True),
    Form(name="kernel 112, ragged", heads=1, queries=150, keys=141, dim=112),
    Form(name="kernel 128, whole tiles", queries=128, keys=128, dim=128),
    Form(name="kernel 160, ragged", heads=1, queries=150, keys=141, dim=160),
    Form(name="kernel 256, ragged", heads=1, queries=70, keys=141, dim=256),
    Form(name="kernel 256, whole tiles, causal", heads=1, queries=128, keys=128, dim=256, causal=True),
    Form(name="kernel 512, ragged", heads=1, queries=70, keys=70, dim=512),
    Form(name="192 and 128", queries=40, keys=150, dim=192, value_dim=128, causal=True),
    Form(name="128 and 192", heads=1, queries=40, keys=150, dim=128, value_dim=192, causal=True),
)

#: a scale that no format holds exactly, at a head_dim whose root is none either, looked at as a whole
DIRECTED_FORMS = tuple(
    Form(
        name=name,
        batch=2,
        heads=4,
        queries=queries,
        keys=keys,
        dim=dim,
        causal=causal,
        scale=scale,
        directions=DIRECTED_SHARED,
    )
    for name, queries, keys, dim, causal, scale in (
        ("head_dim 48, directed", 141, 65, 48, False, None),
        ("head_dim 80, causal, directed", 100, 100, 80, True, None),
        ("head_dim 128, directed", 70, 51, 128, False, None),
        ("scale 0.3, directed", 141, 65, 16, False, 0.3),
    )
)

#: numbers of heads and batches that a grid rounds up or cuts off, with more keys or queries than one tile. Many rows
#: of few keys have a head_dim whose root is exact: with it rounded into q and k, a score may be further off than the
#: worst case of two roundings of its own
COUNT_FORMS = (
    Form(name="12 heads, causal", heads=12, queries=19, keys=41, causal=True),
    Form(name="16 heads", heads=16, queries=19, keys=41),
    Form(name="24 heads, causal", heads=24, queries=9, keys=9, causal=True),
    Form(name="65 heads", heads=65, queries=5, keys=7),
    Form(name="5 batches, 3 heads, causal", batch=5, heads=3, queries=9, keys=11, causal=True),
    Form(name="33 batches", batch=33, heads=16, queries=2, keys=3),
    Form(name="65537 heads", heads=65537, queries=2, keys=3, dim=1),
    Form(name="many keys, many heads", heads=3, queries=19, keys=4099),
)

#: causal masks that are no square, beyond one tile
MASK_FORMS = (
    Form(name="more queries than keys, causal", queries=333, keys=190, causal=True),
    Form(name="more keys than queries, causal", queries=190, keys=333, causal=True),
)

#: numbers that float16 has not, as an intermediate of that kind has not; and scores that a mask does not outweigh
RANGE_FORMS = (
    Form(name="scale 2", queries=31, keys=35, dim=4, scale=2.0),
    Form(name="values 2^40", queries=20, keys=30, dim=64, inputs="values 2^40"),
    Form(name="values 2^14", queries=20, keys=30, dim=64, inputs="values 2^14"),
    Form(name="values 2^-100", queries=20, keys=30, inputs="values 2^-100"),
    Form(name="beyond float16", queries=20, keys=30, inputs="beyond float16"),
    Form(name="small queries", queries=20, keys=30, inputs="small queries"),
    Form(name="all logits -49280", queries=21, keys=21, dim=4, scale=1.0, inputs="all -49280"),
    Form(
        name="staircase of large products",
        heads=1,
        queries=32,
        keys=96,
        dim=1,
        inputs="staircase",
        scale=1 / 64,
    ),
)

#: arrays that lie in memory each in its own way, or within one another
MEMORY_FORMS = tuple(
    Form(name=name, batch=2, heads=3, queries=queries, keys=keys, layout=layout, inputs=inputs)
    for name, queries, keys, layout, inputs in (
        ("mixed inputs", 34, 34, "mixed", "normal"),
        ("mixed inputs, the other way", 34, 34, "mixed 2", "normal"),
        ("packed inputs", 34, 34, "packed", "normal"),
        ("inputs in a cache", 34, 34, "cache", "normal"),
        ("one batch for all", 34, 34, "batch expanded", "shared batches"),
        ("one head for all, one key over 64", 7, 65, "expanded", "shared heads"),
        ("heads inside, one query", 1, 65, "heads inside", "normal"),
    )
)

#: counts from 2^16 on, a sum of as many alike, a maximum that creeps up
LONG_FORMS = (
    Form(name="creeping maximum", heads=1, queries=16, keys=4099, inputs="creeping"),
    Form(name="65539 keys", heads=1, queries=4, keys=65539, dim=32, value_dim=4, inputs="needles"),
    Form(
        name="equal logits, 2^16 keys",
        heads=1,
        queries=2,
        keys=2**16,
        dim=1,
        value_dim=4,
        inputs="equal logits",
    ),
    Form(name="65539 queries", heads=1, queries=65539, keys=3, value_dim=1),
)

#: one query, many keys: split among many threads and merged; many rows, since a key lost may have weighed little in one
DECODING_FORMS = (
    Form(name="kernel 64, decoding", batch=2, heads=8, queries=1, keys=517, dim=64),
    Form(name="kernel 128, decoding", heads=8, queries=1, keys=1031, dim=128),
)

ALL_FORMS = (
    *KERNEL_FORMS,
    *DIRECTED_FORMS,
    *COUNT_FORMS,
    *MASK_FORMS,
    *RANGE_FORMS,
    *MEMORY_FORMS,
    *LONG_FORMS,
    *DECODING_FORMS,
)
