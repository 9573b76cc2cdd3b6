"""The questions of the gate: shapes, masks, scales, layouts and inputs that tell attention from what resembles it.

`pose` draws the arrays of a form for a dtype and a seed. No form depends on a lucky seed: the tables, here and in
`attnlab.accuracy.coverage_questions`, are the same for every seed, the arrays are not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy import coverage_questions, exact_inputs, hard_inputs
from attnlab.accuracy.evidence import DIRECTED, DIRECTED_SHARED
from attnlab.accuracy.form import Form
from attnlab.accuracy.reference import Reference, refer
from attnlab.contract.dtypes import round_to
from attnlab.contract.problem import Problem

#: two products of this size, unscaled, still fit float16: an eager backend may be asked
_LARGEST_PRODUCT = 60000.0


@dataclass(frozen=True, eq=False)
class Question:
    """Arrays as cast to `dtype` (bfloat16 in float32 carriers) and what is asked of them."""

    name: str
    dtype: str
    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    causal: bool
    scale: float
    layout: str = "contiguous"
    certain: bool = False
    directions: float | None = None
    every: int = 1

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads."""
        return int(math.prod(self.q.shape[:3])) * int(self.k.shape[2])

    @cached_property
    def reference(self) -> Reference:
        """The right answer and its bounds, at `rows`."""
        return refer(self.problem, self.rows)["output"]

    @property
    def problem(self) -> Problem:
        """What is asked."""
        options = {"causal": self.causal, "scale": self.scale, "dtype": self.dtype}
        return Problem.of(self.q, self.k, self.v, **options)  # type: ignore[arg-type]

    @property
    def rows(self) -> list[int]:
        """The query rows that are judged."""
        n_q = self.q.shape[2]
        return sorted({*range(0, n_q, self.every), n_q - 1})

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """The shape of a whole answer."""
        return (*self.q.shape[:3], self.v.shape[3])

    @property
    def text(self) -> str:
        """Name and sizes, for a message."""
        b, h, n_q, d = self.q.shape
        n_k, d_v = self.v.shape[2:]
        shape = f"b{b} h{h} n{n_q}" + (f"x{n_k}" if n_k != n_q else "") + f" d{d}"
        shape += f" v{d_v}" if d_v != d else ""
        shape += " causal" if self.causal else ""
        shape += f" {self.layout}" if self.layout != "contiguous" else ""
        return f"{self.dtype}, {self.name} ({shape})"


def pose(form: Form, dtype: str, seed: int) -> Question | None:
    """The question of `form`, or None where `dtype` cannot hold its numbers or its scores."""
    exact = drawn_once(form, seed)
    q, k, v = (round_to(array, dtype) for array in exact)
    if not all(_held(*one) for one in zip(exact, (q, k, v), strict=True)):
        return None
    if (
        dtype == "float16"
        and float(np.abs(q.astype(float) @ k.astype(float).swapaxes(2, 3)).max()) > _LARGEST_PRODUCT
    ):
        return None
    return Question(
        name=form.name,
        dtype=dtype,
        q=q,
        k=k,
        v=v,
        causal=form.causal,
        scale=form.scaled_by,
        layout=form.layout,
        certain=form.inputs in exact_inputs.CONSTRUCTIONS,
        directions=form.directions,
        every=form.every,
    )


@lru_cache(maxsize=200)
def drawn_once(form: Form, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """q, k and v of `form` before they are cast: the same for all dtypes."""
    rng = np.random.default_rng([seed, zlib.crc32(form.name.encode())])
    value_dim = form.dim if form.value_dim is None else form.value_dim
    lead = (form.batch, form.heads)
    q, k, v = (
        rng.standard_normal((*lead, length, dim))
        for length, dim in ((form.queries, form.dim), (form.keys, form.dim), (form.keys, value_dim))
    )
    q, k, v = (hard_inputs.CONSTRUCTIONS | exact_inputs.CONSTRUCTIONS)[form.inputs](
        q, k, v, form.scaled_by, rng
    )
    if form.values == "ones":
        v = np.ones_like(v)
    elif form.values == "keys":
        v = k
    for array in (q, k, v):
        array.flags.writeable = False
    return q, k, v


def _held(exact: NDArray[Any], cast: NDArray[Any]) -> bool:
    """Whether a dtype has these numbers: none became infinite, and not all became 0."""
    return bool(np.isfinite(cast).all() and (cast.any() or not exact.any()))


#: first what most faults fail, so that a wrong backend is told quickly
FIRST = (
    Form(name="normal", batch=2, heads=3, queries=65, keys=67, directions=DIRECTED),
    Form(name="normal, causal", batch=2, heads=3, queries=67, keys=67, causal=True, directions=DIRECTED),
    Form(
        name="means of two values",
        batch=16,
        heads=32,
        queries=1,
        keys=2,
        inputs="zero keys",
        directions=DIRECTED,
    ),
    Form(name="one key", batch=2, heads=8, queries=5, keys=1, inputs="equal logits"),
    Form(name="look-up", heads=3, queries=32, keys=32, dim=64, inputs="look-up"),
    Form(name="staircase", heads=1, queries=96, keys=96, dim=1, inputs="staircase", causal=True),
    Form(name="falling staircase", heads=1, queries=96, keys=96, dim=1, inputs="falling staircase"),
    Form(
        name="logit std 2", batch=2, heads=3, queries=48, keys=129, inputs="logit_std_2", directions=DIRECTED
    ),
)

REGIME_FORMS = (
    Form(name="logit std 4", queries=49, keys=49, inputs="logit_std_4"),
    Form(name="logit std 8", queries=49, keys=65, inputs="logit_std_8"),
    Form(name="logit std 8, causal", queries=49, keys=49, inputs="logit_std_8", causal=True),
    Form(name="shifted means", queries=47, keys=50, inputs="shifted_means"),
    Form(name="outliers", queries=40, keys=70, dim=24, inputs="outliers"),
    Form(name="duplicated maxima", queries=40, keys=70, inputs="duplicated_maxima"),
    Form(name="logits above 1000", queries=30, keys=45, inputs="above_1000"),
    Form(name="logits below -50000", queries=30, keys=45, inputs="below_minus_50000"),
    Form(name="logits below -50000, causal", queries=30, keys=45, inputs="below_minus_50000", causal=True),
    Form(name="all logits 1024", queries=20, keys=64, inputs="all 1024"),
    Form(name="all logits -49152", queries=20, keys=64, dim=1, inputs="all -49152"),
    Form(name="all logits -49152, causal", queries=21, keys=21, dim=1, inputs="all -49152", causal=True),
    Form(name="all logits -2^20, causal", queries=21, keys=21, dim=1, inputs="all -2^20", causal=True),
    Form(name="rows at different levels", queries=35, keys=64, inputs="levels"),
    Form(name="long staircase", heads=1, queries=16, keys=512, dim=1, inputs="long staircase"),
    Form(name="all logits -48", queries=20, keys=64, inputs="all -48"),
    Form(name="V = 1", queries=40, keys=77, values="ones"),
    Form(name="V = K", queries=40, keys=77, values="keys"),
    Form(name="equal logits", heads=3, queries=7, keys=256, inputs="equal logits"),
    Form(name="small values", queries=20, keys=30, inputs="small values"),
    Form(name="large values", queries=20, keys=30, inputs="large values"),
)

SHAPE_FORMS = (
    Form(name="one query", heads=3, queries=1, keys=127),
    Form(name="one query, causal", heads=3, queries=1, keys=31, causal=True),
    Form(name="one query, one key", queries=1, keys=1),
    Form(name="one key, random", batch=2, heads=3, queries=17, keys=1, causal=True),
    Form(name="fewer queries, causal", batch=2, heads=3, queries=23, keys=40, causal=True),
    Form(name="fewer keys, causal", batch=2, heads=3, queries=70, keys=17, causal=True),
    Form(name="fewer keys", queries=100, keys=31),
    Form(name="64 and 128", heads=1, queries=64, keys=128),
    Form(name="63 and 65", queries=63, keys=65, dim=8),
    Form(name="one over 128", queries=32, keys=129, dim=32),
    Form(name="one under 256", heads=1, queries=24, keys=255, dim=8),
    Form(name="head_dim 1", heads=3, queries=37, keys=41, dim=1),
    Form(name="head_dim 3", queries=37, keys=41, dim=3),
    Form(name="head_dim 7, causal", queries=41, keys=41, dim=7, causal=True),
    Form(name="head_dim 33", queries=19, keys=43, dim=33),
    Form(name="head_dim 64", batch=2, heads=4, queries=70, keys=51, dim=64, directions=DIRECTED_SHARED),
    Form(name="head_dim 80", queries=21, keys=34, dim=80),
    Form(name="head_dim 128, causal", queries=34, keys=34, dim=128, causal=True),
    Form(name="head_dim 257", queries=9, keys=22, dim=257),
    Form(name="value_dim 1", queries=30, keys=42, value_dim=1),
    Form(name="value_dim above", queries=30, keys=42, value_dim=37),
    Form(
        name="value_dim below, causal",
        batch=2,
        heads=3,
        queries=30,
        keys=42,
        dim=24,
        value_dim=8,
        causal=True,
    ),
    Form(name="batch 5", batch=5, heads=1, queries=17, keys=19),
    Form(name="17 heads", heads=17, queries=13, keys=11),
    Form(name="3 x 8 heads, causal", batch=3, heads=8, queries=16, keys=16, dim=8, causal=True),
    Form(name="17 batches", batch=17, heads=2, queries=5, keys=12),
)

SCALE_FORMS = (
    Form(name="scale 1", queries=31, keys=35, dim=8, scale=1.0),
    Form(name="scale 1/64, causal", queries=35, keys=35, scale=1 / 64, causal=True),
    Form(name="scale 0.3", queries=31, keys=35, scale=0.3),
    Form(name="scale -0.25", queries=31, keys=35, scale=-0.25),
    # causal is asked with a positive scale: PyTorch 2.13's own CPU kernels multiply -inf by a negative one into NaN,
    # and a plain call of them is not what this gate is to find fault with
    Form(name="scale 0.7, causal", queries=35, keys=35, scale=0.7, causal=True),
)

LAYOUT_FORMS = tuple(
    Form(
        name=f"{layout} inputs",
        batch=2,
        heads=3,
        queries=21,
        keys=34,
        layout=layout,
        causal=causal,
        inputs="shared heads" if layout == "expanded" else "normal",
    )
    for layout, causal in (
        ("transposed", False),
        ("heads inside", True),
        ("heads inside", False),
        ("sliced", False),
        ("expanded", False),
        ("refilled", False),
    )
)

LONG_FORMS = (
    Form(name="several blocks", heads=1, queries=300, keys=333, dim=16, directions=DIRECTED),
    Form(
        name="several blocks, causal",
        heads=2,
        queries=321,
        keys=321,
        dim=16,
        causal=True,
        directions=DIRECTED,
    ),
    Form(name="rising logits, several blocks", heads=1, queries=130, keys=777, dim=16, inputs="rising"),
    Form(name="several blocks, std 8", heads=1, queries=70, keys=1100, dim=16, inputs="logit_std_8"),
    Form(name="many keys", heads=1, queries=37, keys=4099, dim=16),
    Form(name="needles among many keys", heads=1, queries=20, keys=4099, dim=64, inputs="needles"),
    Form(name="many queries", heads=1, queries=4099, keys=37, dim=16),
    Form(name="many queries, causal", heads=1, queries=4099, keys=65, dim=16, causal=True),
    Form(name="blocks in both, causal", heads=1, queries=2113, keys=2113, dim=16, causal=True, every=8),
    Form(name="very many keys", heads=1, queries=8, keys=16411, dim=16),
    Form(name="very many queries", heads=1, queries=16411, keys=8, dim=16),
)

#: decides the class that is printed: at logit std 1 no weight dominates, so that rounding them shows
CLASS_FORM = Form(name="precision class", heads=1, queries=48, keys=512, dim=64)

#: asked again, at once and with another between, at the end
REPEATED = SHAPE_FORMS[4]
#: asked again and again: several blocks of keys and of queries and two heads, so that what runs at once may collide
REPEATED_OFTEN = LONG_FORMS[1]

#: those of `coverage` last: the pace of a backend is taken from what was asked before
ALL_FORMS = (
    *FIRST,
    CLASS_FORM,
    *REGIME_FORMS,
    *SHAPE_FORMS,
    *SCALE_FORMS,
    *LAYOUT_FORMS,
    *LONG_FORMS,
)


@lru_cache(maxsize=800)
def posed(form: Form, dtype: str, seed: int) -> Question | None:
    """`pose`, kept: its reference is computed once for all backends that are asked in this process."""
    return pose(form, dtype, seed)


def questions(dtype: str, seed: int) -> Iterator[Question]:
    """Every question that `dtype` can hold, those that tell most first.

    In float64 those of `coverage` are left out: what has a path of its own has it for the formats that it is fast in.
    """
    for form in ALL_FORMS if dtype == "float64" else (*ALL_FORMS, *coverage_questions.ALL_FORMS):
        question = posed(form, dtype, seed)
        if question is not None:
            yield question
