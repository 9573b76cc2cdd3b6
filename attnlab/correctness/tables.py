"""The fixed questions of the gate, one a line as `conditions` writes them: those that tell most first.

No form depends on a lucky seed: the tables are the same for every seed, the arrays are not. What no table names is
drawn at random (`attnlab.correctness.conditions`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from attnlab.correctness.conditions import Form, read

#: what most faults fail, so that a wrong backend is told quickly
FIRST = read("""
normal: b2 h3 n65x67 z=8
normal, causal: b2 h3 n67 causal z=8
means of two values: b16 h32 n1x2 inputs=zero_keys z=8
one key: b2 h8 n5x1 inputs=equal_logits
look-up: h3 n32 d64 inputs=look-up
staircase: h1 n96 d1 causal inputs=staircase
falling staircase: h1 n96 d1 inputs=falling_staircase
logit std 2: b2 h3 n48x129 inputs=logit_std_2 z=8
""")

#: decides the class that is printed: at logit std 1 no weight dominates, so that rounding them shows
CLASS_FORM = Form.parse("precision class: h1 n48x512 d64")

DISTRIBUTIONS = read("""
logit std 4: n49 inputs=logit_std_4
logit std 8: n49x65 inputs=logit_std_8
logit std 8, causal: n49 causal inputs=logit_std_8
shifted means: n47x50 inputs=shifted_means
outliers: n40x70 d24 inputs=outliers
duplicated maxima: n40x70 inputs=duplicated_maxima
logits above 1000: n30x45 inputs=above_1000
logits below -50000: n30x45 inputs=below_minus_50000
logits below -50000, causal: n30x45 causal inputs=below_minus_50000
all logits 1024: n20x64 inputs=all_1024
all logits -49152: n20x64 d1 inputs=all_-49152
all logits -49152, causal: n21 d1 causal inputs=all_-49152
all logits -2^20, causal: n21 d1 causal inputs=all_-2^20
all logits -48: n20x64 inputs=all_-48
rows at different levels: n35x64 inputs=levels
long staircase: h1 n16x512 d1 inputs=long_staircase
V = 1: n40x77 values=ones
V = K: n40x77 values=keys
equal logits: h3 n7x256 inputs=equal_logits
small values: n20x30 inputs=small_values
large values: n20x30 inputs=large_values
""")

SHAPES = read("""
one query: h3 n1x127
one query, causal: h3 n1x31 causal
one query, one key: n1
one key, random: b2 h3 n17x1 causal
fewer queries, causal: b2 h3 n23x40 causal
fewer keys, causal: b2 h3 n70x17 causal
fewer keys: n100x31
64 and 128: h1 n64x128
63 and 65: n63x65 d8
one over 128: n32x129 d32
one under 256: h1 n24x255 d8
head_dim 1: h3 n37x41 d1
head_dim 3: n37x41 d3
head_dim 7, causal: n41 d7 causal
head_dim 33: n19x43 d33
head_dim 64: b2 h4 n70x51 d64 z=20
head_dim 80: n21x34 d80
head_dim 128, causal: n34 d128 causal
head_dim 257: n9x22 d257
value_dim 1: n30x42 d16v1
value_dim above: n30x42 d16v37
value_dim below, causal: b2 h3 n30x42 d24v8 causal
batch 5: b5 h1 n17x19
17 heads: h17 n13x11
3 x 8 heads, causal: b3 h8 n16 d8 causal
17 batches: b17 n5x12
""")

SCALES = read("""
scale 1: n31x35 d8 scale=1.0
scale 1/64, causal: n35 causal scale=0.015625
scale 0.3: n31x35 scale=0.3
scale -0.25: n31x35 scale=-0.25
scale 0.7, causal: n35 causal scale=0.7
scale 0: n31x35 scale=0.0
""")

LAYOUTS = read("""
transposed inputs: b2 h3 n21x34 layout=transposed
heads inside inputs, causal: b2 h3 n21x34 causal layout=heads_inside
heads inside inputs: b2 h3 n21x34 layout=heads_inside
sliced inputs: b2 h3 n21x34 layout=sliced
expanded inputs: b2 h3 n21x34 inputs=shared_heads layout=expanded
refilled inputs: b2 h3 n21x34 layout=refilled
""")

#: every part of the contract: what a mask, a bias, groups of heads, a cap and sinks may be, alone and together.
#: The staircases are exact: a row's answer is the value at the last key that it sees, or the first
FEATURES = read("""
bottom right: b2 h3 n23x40 mask=causal(bottom_right)
bottom right, more queries: b2 h3 n70x17 mask=causal(bottom_right)
bottom right staircase: h1 n64x96 d1 mask=causal(bottom_right) inputs=staircase
bottom right, several blocks: n190x333 mask=causal(bottom_right)
window: b2 n40 mask=window(5,3)
window, left: n67 mask=causal(top_left)&window(8,-1)
window, right: n40x50 mask=window(-1,4)
window of one: n33 mask=window(0,0)
window staircase: h1 n64x96 d1 mask=window(3,2) inputs=staircase
window falling staircase: h1 n96x64 d1 mask=window(3,2) inputs=falling_staircase
window, more queries: n50x30 mask=window(4,2)
window, bottom right: n30x50 mask=window(7,3,bottom_right)
window, bottom right, causal: n30x50 mask=causal(bottom_right)&window(7,0,bottom_right)
window, bottom right, more queries: n50x30 mask=window(4,2,bottom_right)
window staircase, bottom right: h1 n64x96 d1 mask=window(3,2,bottom_right) inputs=staircase
window falling staircase, bottom right: h1 n64x96 d1 mask=window(3,2,bottom_right) inputs=falling_staircase
window, several blocks: h1 n300x333 mask=causal(bottom_right)&window(64,0,bottom_right)
key lengths: b3 n33x40 mask=key_lengths(40,17,1)
key lengths, one of 0: b3 n9x40 mask=key_lengths(0,40,32)
key lengths, causal: b2 n40 mask=causal(top_left)&key_lengths(13,40)
key lengths staircase: b4 n5x64 d1 mask=key_lengths(64,63,0,1) inputs=staircase
key lengths, several blocks: b2 h1 n70x333 mask=key_lengths(129,300)
prefix: n50 mask=prefix(12)
prefix staircase: h1 n96 d1 mask=prefix(40) inputs=staircase
random pairs: n40x50 mask=random(0.5,3)
few random pairs: n40x50 mask=random(0.05,4)
random staircase: h3 n64 d1 array=bhqk inputs=staircase
mask of queries and keys: b2 h3 n20x30 array=qk
mask with a head axis of one: b2 h3 n20x30 array=b1qk
mask with a batch axis of one: b2 h3 n20x30 array=1hqk
mask of keys: b3 n20x30 array=b11k
mask of heads and keys: b2 h3 n20x30 array=1h1k
mask of whole rows: b2 h3 n20x30 array=bhq1
mask of all axes: b2 h3 n20x30 array=bhqk
mask with empty rows: b2 h3 n20x30 array=b1qk-
mask with empty rows, staircase: n64 d1 array=bhqk- inputs=staircase
mask, several blocks: h1 n140x200 array=qk-
bias of queries and keys: b2 h3 n20x30 bias=qk
bias with a batch axis of one: b2 h3 n20x30 bias=1hqk
bias with a head axis of one: b2 h3 n20x30 bias=b1qk
bias of keys: b3 n20x30 bias=b11k
bias of heads: h5 n20x30 bias=1hq1 mask=window(9,9)
bias of all axes, causal: b2 h3 n30 bias=bhqk causal
bias, several blocks: h1 n140x200 bias=1hqk
bias of -inf: b2 h3 n20x30 bias=1hqk-
ALiBi: h4 n30x40 bias=alibi
ALiBi, six heads, causal: h6 n40 bias=alibi causal
ALiBi staircase: h8 n40x64 d1 bias=alibi inputs=staircase
groups of four: b2 h8/2 n20x30
groups of two, causal: h6/3 n30 causal
one head of keys: h6/1 n20x30
groups, look-up: h6/2 n32 d64 inputs=look-up
groups, value_dim above: h4/2 n20x30 d16v40 causal
groups, heads inside: b2 h8/2 n20x30 layout=heads_inside
groups, packed keys: b2 h4/2 n30 layout=mixed
decoding, groups: b2 h8/2 n1x517 d64
decoding, bottom right: h4/2 n1x130 mask=causal(bottom_right)
decoding, window: h4 n1x300 mask=causal(bottom_right)&window(31,0,bottom_right)
decoding, key lengths: b4 h4/1 n1x130 mask=key_lengths(130,1,64,0)
cap: n40x50 softcap=20.0 inputs=logit_std_8
cap, causal: n40 softcap=5.0 inputs=logit_std_4 causal
cap below the scores: n40x50 softcap=2.0 inputs=logit_std_8
cap and bias: h3 n30x40 softcap=3.0 bias=1hqk inputs=logit_std_4
cap and a negative scale: n30x40 softcap=3.0 scale=-0.25
sinks: b2 h5 n20x30 sinks
sinks, causal: h5 n40 sinks causal
sinks, rows without keys: h5 n50x30 sinks mask=causal(bottom_right)
sinks, groups, window: h8/2 n28 sinks mask=causal(top_left)&window(12,-1)
sinks, large scores: h4 n20x30 sinks inputs=logit_std_8
negative scale, causal: n35 causal scale=-0.25
scale 0, key lengths: b2 n20x30 scale=0.0 mask=key_lengths(30,11)
all at once: b2 h6/2 n20x30 d24v8 mask=causal(bottom_right)&window(14,-1,bottom_right)&key_lengths(30,19) bias=1hqk softcap=8.0 sinks
all at once, array: b2 h4/2 n20x30 array=b1qk- bias=alibi softcap=8.0 sinks layout=heads_inside
""")  # noqa: E501 - a line is a condition

LONG = read("""
several blocks: h1 n300x333 z=8
several blocks, causal: n321 causal z=8
rising logits, several blocks: h1 n130x777 inputs=rising
several blocks, std 8: h1 n70x1100 inputs=logit_std_8
many keys: h1 n37x4099
needles among many keys: h1 n20x4099 d64 inputs=needles
many queries: h1 n4099x37
many queries, causal: h1 n4099x65 causal
blocks in both, causal: h1 n2113 causal every=8
very many keys: h1 n8x16411
very many queries: h1 n16411x8
""")

#: what a fault may depend on that no formula mentions. A kernel is compiled once for every head_dim it serves, has
#: another path for whole tiles, for one query and for many keys, reads arrays by their strides and counts in 16 bits.
#: Asked last, since the pace of a backend is taken from what was asked before, and not in float64: what has a path of
#: its own has it for the formats that it is fast in
PATHS = read("""
kernel 2, ragged, causal: b2 h1 n150x141 d2 causal
kernel 32, ragged, causal: b2 h1 n150x141 d32 causal
kernel 40, ragged: b2 h1 n150x141 d40
kernel 64, whole tiles, causal: n128 d64 causal
kernel 96, few queries, causal: n12x321 d96 causal
kernel 112, ragged: h1 n150x141 d112
kernel 128, whole tiles: n128 d128
kernel 160, ragged: h1 n150x141 d160
kernel 256, ragged: h1 n70x141 d256
kernel 256, whole tiles, causal: h1 n128 d256 causal
kernel 512, ragged: h1 n70 d512
192 and 128: n40x150 d192v128 causal
128 and 192: h1 n40x150 d128v192 causal
head_dim 48, directed: b2 h4 n141x65 d48 z=20
head_dim 80, causal, directed: b2 h4 n100 d80 causal z=20
head_dim 128, directed: b2 h4 n70x51 d128 z=20
scale 0.3, directed: b2 h4 n141x65 scale=0.3 z=20
12 heads, causal: h12 n19x41 causal
16 heads: h16 n19x41
24 heads, causal: h24 n9 causal
65 heads: h65 n5x7
5 batches, 3 heads, causal: b5 h3 n9x11 causal
33 batches: b33 h16 n2x3
65537 heads: h65537 n2x3 d1
many keys, many heads: h3 n19x4099
more queries than keys, causal: n333x190 causal
more keys than queries, causal: n190x333 causal
scale 2: n31x35 d4 scale=2.0
values 2^40: n20x30 d64 inputs=values_2^40
values 2^14: n20x30 d64 inputs=values_2^14
values 2^-100: n20x30 inputs=values_2^-100
beyond float16: n20x30 inputs=beyond_float16
small queries: n20x30 inputs=small_queries
all logits -49280: n21 d4 scale=1.0 inputs=all_-49280
staircase of large products: h1 n32x96 d1 scale=0.015625 inputs=staircase
mixed inputs: b2 h3 n34 layout=mixed
mixed inputs, the other way: b2 h3 n34 layout=mixed_2
packed inputs: b2 h3 n34 layout=packed
inputs in a cache: b2 h3 n34 layout=cache
one batch for all: b2 h3 n34 inputs=shared_batches layout=batch_expanded
one head for all, one key over 64: b2 h3 n7x65 inputs=shared_heads layout=expanded
heads inside, one query: b2 h3 n1x65 layout=heads_inside
creeping maximum: h1 n16x4099 inputs=creeping
65539 keys: h1 n4x65539 d32v4 inputs=needles
equal logits, 2^16 keys: h1 n2x65536 d1v4 inputs=equal_logits
65539 queries: h1 n65539x3 d16v1
kernel 64, decoding: b2 h8 n1x517 d64
kernel 128, decoding: h8 n1x1031 d128
""")

#: ln Z beside the output: of whole keys, then of parts that are merged by it
LOG_SUMS = tuple(
    replace(form, log_sum=True)
    for form in read("""
ln Z: b2 h3 n65x67
ln Z, causal: b2 h3 n67 causal
ln Z, precision class: h1 n48x512 d64
ln Z, one key: b2 h8 n5x1
ln Z, logit std 8: n49x65 inputs=logit_std_8
ln Z, logits above 1000: n30x45 inputs=above_1000
ln Z, logits below -50000: n30x45 inputs=below_minus_50000
ln Z, several blocks: h1 n300x333
ln Z, many keys: h1 n5x4099
ln Z, empty rows: b3 n9x40 mask=key_lengths(0,40,32)
ln Z, bottom right, more queries: b2 h3 n70x17 mask=causal(bottom_right)
ln Z, random pairs: n40x50 mask=random(0.05,4)
ln Z, bias: h5 n20x30 bias=1hqk
ln Z, cap: n40x50 softcap=5.0 inputs=logit_std_4
ln Z, sinks: h8/2 n28 sinks mask=causal(top_left)&window(12,-1)
ln Z, sinks, rows without keys: h5 n50x30 sinks mask=causal(bottom_right)
ln Z, groups, decoding: b4 h8/2 n1x517 d64 mask=key_lengths(517,1,64,0)
ln Z, layout: b2 h3 n21x34 layout=heads_inside
""")
)

FORWARD = (*FIRST, CLASS_FORM, *DISTRIBUTIONS, *SHAPES, *SCALES, *LAYOUTS, *FEATURES)
BY_NAME = {form.name: form for form in (*FORWARD, *LONG, *PATHS, *LOG_SUMS)}


def _backward(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """The same, and the gradients for one that is drawn where none is named."""
    return tuple(form if form.upstream else replace(form, upstream="normal") for form in forms)


def _again(*names: str) -> tuple[Form, ...]:
    return _backward(tuple(BY_NAME[name] for name in names))


#: what many heads have: independent errors, so that a part that all share shows
BACKWARD_FIRST = (
    *_again("normal", "normal, causal"),
    *_backward(
        read("""
many heads: b8 h16 n20x24 gradient_z=8
many heads, causal: b8 h16 n24 causal gradient_z=8
keys of one score: b4 h8 n16x4 inputs=hidden_keys upstream=signs exact_gradients
keys of one score, groups: b8 h8/2 n4 inputs=hidden_keys upstream=signs exact_gradients
""")
    ),
    *_again("logit std 2", "look-up", "staircase"),
)

#: decides the class that is printed: more queries than any kernel takes at a time, at logit std 1
BACKWARD_CLASS_FORM = Form.parse("precision class of gradients: h1 n512x64 d64 upstream=normal")

BACKWARD_LAYOUTS = _backward(
    read("""
gradient of a sum: b2 h3 n33x40 upstream=ones gradient_layout=one_number
gradient of one row: n33 causal upstream=one_row
gradient of a square: n33x40 upstream=output
small output gradient: n20x30 upstream=small
large output gradient: n20x30 upstream=large
transposed inputs: b2 h3 n21x34 layout=transposed
heads inside inputs, causal: b2 h3 n21x34 causal layout=heads_inside gradient_layout=heads_inside
heads inside inputs: b2 h3 n21x34 layout=heads_inside gradient_layout=transposed
sliced inputs: b2 h3 n21x34 layout=sliced gradient_layout=sliced
expanded inputs: b2 h3 n21x34 inputs=shared_heads layout=expanded
unusual output gradient: b2 h3 n21x34 gradient_layout=transposed
unusual output gradient, heads inside: b2 h3 n21x34 gradient_layout=heads_inside
""")
)

#: what only a second block adds is a part of a gradient that no other question sees below a roundoff. Not in float64
BACKWARD_LONG = _backward(
    read("""
many heads, long keys: b8 h16 n3x96 gradient_z=8
many heads, long queries: b8 h16 n96x3 gradient_z=8
several blocks, gradients: h1 n300x333
several blocks, gradients, causal: h1 n321 causal
rising logits, several blocks: h1 n130x777 inputs=rising
more keys than a block: h1 n37x2099
more queries than a block: h1 n2099x37
more queries than a block, causal: h1 n1099x65 causal
groups, several blocks: h4/2 n150x141 d32
""")
)

#: scores of a feature's condition up to which its gradients are asked for: what is longer is so for its blocks
_SMALL = 8_000

BACKWARD = (
    *BACKWARD_FIRST,
    BACKWARD_CLASS_FORM,
    *_again(
        *("logit std 4", "logit std 8, causal", "shifted means", "outliers", "duplicated maxima"),
        *("logits above 1000", "logits below -50000", "rows at different levels", "V = 1", "V = K"),
        "equal logits",
    ),
    *BACKWARD_LAYOUTS,
    *_backward(SHAPES),
    *_backward(SCALES),
    *_backward(tuple(form for form in FEATURES if math.prod(form.shape) <= _SMALL)),
)

#: asked again, at once and with another between, at the end
REPEATED = BY_NAME["fewer queries, causal"]
#: asked again and again: several blocks of keys and of queries and two heads, so that what runs at once may collide
REPEATED_OFTEN = BY_NAME["several blocks, causal"]

#: asked, then with one thing changed on the very same shapes, then as before: a kernel that is kept by a key that
#: leaves something out answers the second as the first. What is changed is written as in a form, or is a dtype
SEQUENCES: tuple[tuple[Form, tuple[str, ...]], ...] = tuple(
    (Form.parse(form), tuple(changes.split()))
    for form, changes in {
        "sequence: b2 h4 n24x24": (
            "mask=causal(top_left) array=qk mask=window(3,2) mask=key_lengths(7,24) mask=random(0.5,1) bias=1hqk "
            "bias=alibi softcap=1.0 sinks scale=0.5 layout=heads_inside layout=transposed layout=sliced "
            "inputs=logit_std_2 draw=1 float16 float32 bfloat16"
        ),
        "masked sequence: b2 h4 n24x30 mask=causal(top_left)&random(0.7,1)": (
            "mask=causal(bottom_right)&random(0.7,1) mask=causal(top_left)&random(0.7,2) "
            "mask=causal(top_left)&window(5,-1)"
        ),
        "sequence of lengths: b2 h4/2 n24x30 mask=key_lengths(9,30)": "mask=key_lengths(30,9)",
        "sequence of arrays: b2 h4/2 n24x30 array=qk": "draw=1 array=1hqk array=b11k",
        "sequence of sums: b2 h4 n24x30 bias=1hqk softcap=5.0 sinks": "draw=1 bias=b1qk softcap=2.0 bias=1hqk-",
    }.items()
)
