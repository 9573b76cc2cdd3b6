"""The questions of the gate about gradients: inputs as for the forward pass, and the gradient that arrives.

A gradient form is a form of `attnlab.judging.questions` and what ∂L/∂o is. As there, no form depends on a lucky seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.dtypes import round_to
from attnlab.judging.evidence import DIRECTED
from attnlab.judging.gradient_reference import refer_gradients
from attnlab.judging.questions import Form, Question, posed
from attnlab.judging.reference import Reference

Array = NDArray[np.float64]
Upstream = Callable[[np.random.Generator, Question], Array]


def _normal(rng: np.random.Generator, question: Question) -> Array:
    return rng.standard_normal((*question.q.shape[:3], question.v.shape[3]))


def _ones(rng: np.random.Generator, question: Question) -> Array:
    """L is the sum of the output."""
    return np.ones((*question.q.shape[:3], question.v.shape[3]))


def _times(size: float) -> Upstream:
    return lambda rng, question: size * _normal(rng, question)


def _one_row(rng: np.random.Generator, question: Question) -> Array:
    """L looks at the last query alone: what reaches it from others shows."""
    found = _normal(rng, question)
    found[:, :, :-1] = 0
    return found


def _output(rng: np.random.Generator, question: Question) -> Array:
    """L is half the squared norm of the output."""
    return question.reference.output


def _signs(rng: np.random.Generator, question: Question) -> Array:
    """-1, 0 and 1: no product of them with whole numbers rounds."""
    return np.sign(np.rint(_normal(rng, question)))


UPSTREAMS: dict[str, Upstream] = {
    "normal": _normal,
    "ones": _ones,
    "one row": _one_row,
    "output": _output,
    "signs": _signs,
    "small": _times(2.0**-8),
    "large": _times(2.0**8),
}


@dataclass(frozen=True)
class GradientForm:
    """One question before its arrays are drawn. `upstream` is what ∂L/∂o is, and how it lies in memory.

    certain : nothing is rounded on the way back but the gradients themselves.
    """

    form: Form
    upstream: str = "normal"
    upstream_layout: str = "contiguous"
    certain: bool = False


@dataclass(frozen=True, eq=False)
class GradientQuestion:
    """The forward question, and ∂L/∂o, (batch, heads, n_q, value_dim), as cast to its dtype."""

    question: Question
    upstream: NDArray[Any]
    upstream_layout: str
    certain: bool = False

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads, which the way back meets more than twice as often."""
        return 3 * self.question.pairs

    @cached_property
    def references(self) -> tuple[Reference, Reference, Reference]:
        """The right gradients of query, key and value, and their bounds."""
        return refer_gradients(self.question, self.upstream)

    @property
    def text(self) -> str:
        """Name and sizes, for a message."""
        layout = f", output gradient {self.upstream_layout}" if self.upstream_layout != "contiguous" else ""
        return f"gradients in {self.question.text}{layout}"


def _form(upstream: str = "normal", upstream_layout: str = "contiguous", **form: Any) -> GradientForm:
    return GradientForm(Form(**form), upstream, upstream_layout)


#: first what most faults fail, so that a wrong backend is told quickly
FIRST = (
    _form(name="normal", batch=2, heads=3, queries=65, keys=67),
    _form(name="normal, causal", batch=2, heads=3, queries=67, keys=67, causal=True),
    # whose errors are independent, so that a part that all share shows
    _form(name="many heads", batch=8, heads=16, queries=20, keys=24, directions=DIRECTED),
    _form(
        name="many heads, causal", batch=8, heads=16, queries=24, keys=24, causal=True, directions=DIRECTED
    ),
    GradientForm(
        Form(name="keys of one score", batch=4, heads=8, queries=16, keys=4, inputs="hidden keys"),
        upstream="signs",
        certain=True,
    ),
    _form(name="logit std 2", batch=2, heads=3, queries=48, keys=129, inputs="logit_std_2"),
)

REGIME_FORMS = (
    _form(name="logit std 4", queries=49, keys=49, inputs="logit_std_4"),
    _form(name="logit std 8, causal", queries=49, keys=49, inputs="logit_std_8", causal=True),
    _form(name="shifted means", queries=47, keys=50, inputs="shifted_means"),
    _form(name="outliers", queries=40, keys=70, dim=24, inputs="outliers"),
    _form(name="duplicated maxima", queries=40, keys=70, inputs="duplicated_maxima"),
    _form(name="logits above 1000", queries=30, keys=45, inputs="above_1000"),
    _form(name="logits below -50000", queries=30, keys=45, inputs="below_minus_50000"),
    _form(name="look-up", heads=3, queries=32, keys=32, dim=32, inputs="look-up"),
    _form(name="rows at different levels", queries=35, keys=64, inputs="levels"),
    _form(name="staircase", heads=1, queries=96, keys=96, dim=1, inputs="staircase", causal=True),
    _form(name="V = 1", queries=40, keys=77, values="ones"),
    _form(name="V = K", queries=40, keys=77, values="keys"),
    _form(name="equal logits", heads=3, queries=7, keys=256, inputs="equal logits"),
    _form("ones", "one number", name="gradient of a sum", batch=2, heads=3, queries=33, keys=40),
    _form("one row", name="gradient of one row", queries=33, keys=33, causal=True),
    _form("output", name="gradient of a square", queries=33, keys=40),
    _form("small", name="small output gradient", queries=20, keys=30),
    _form("large", name="large output gradient", queries=20, keys=30),
)

SHAPE_FORMS = (
    _form(name="one query", heads=3, queries=1, keys=127),
    _form(name="one query, causal", heads=3, queries=1, keys=31, causal=True),
    _form(name="one query, one key", queries=1, keys=1),
    _form(name="one key", batch=2, heads=3, queries=17, keys=1),
    _form(name="fewer queries, causal", batch=2, heads=3, queries=23, keys=40, causal=True),
    _form(name="fewer keys, causal", batch=2, heads=3, queries=70, keys=17, causal=True),
    _form(name="fewer keys", queries=100, keys=31),
    _form(name="64 and 128", heads=1, queries=64, keys=128),
    _form(name="63 and 65", queries=63, keys=65, dim=8),
    _form(name="head_dim 1", heads=3, queries=37, keys=41, dim=1),
    _form(name="head_dim 7, causal", queries=41, keys=41, dim=7, causal=True),
    _form(name="head_dim 33", queries=19, keys=43, dim=33),
    _form(name="head_dim 64", queries=40, keys=51, dim=64),
    _form(name="head_dim 128, causal", queries=34, keys=34, dim=128, causal=True),
    _form(name="head_dim 257", queries=9, keys=22, dim=257),
    _form(name="value_dim 1", queries=30, keys=42, value_dim=1),
    _form(name="value_dim above", queries=30, keys=42, value_dim=37),
    _form(
        name="value_dim below, causal",
        batch=2,
        heads=3,
        queries=30,
        keys=42,
        dim=24,
        value_dim=8,
        causal=True,
    ),
    _form(name="batch 5", batch=5, heads=1, queries=17, keys=19),
    _form(name="17 heads", heads=17, queries=13, keys=11),
    _form(name="17 batches, causal", batch=17, heads=2, queries=12, keys=12, causal=True),
)

SCALE_FORMS = (
    _form(name="scale 1", queries=31, keys=35, dim=8, scale=1.0),
    _form(name="scale 1/64, causal", queries=35, keys=35, scale=1 / 64, causal=True),
    _form(name="scale 0.3", queries=31, keys=35, scale=0.3),
    _form(name="scale -0.25", queries=31, keys=35, scale=-0.25),
    _form(name="scale 0.7, causal", queries=35, keys=35, scale=0.7, causal=True),
)

LAYOUT_FORMS = tuple(
    _form(
        upstream_layout=upstream_layout,
        name=f"{layout} inputs",
        batch=2,
        heads=3,
        queries=21,
        keys=34,
        layout=layout,
        causal=causal,
        inputs="shared heads" if layout == "expanded" else "normal",
    )
    for layout, upstream_layout, causal in (
        ("transposed", "contiguous", False),
        ("contiguous", "transposed", True),
        ("heads inside", "heads inside", True),
        ("contiguous", "heads inside", False),
        ("sliced", "sliced", False),
        ("expanded", "contiguous", False),
    )
)

LONG_FORMS = (
    # what only a second block adds is a part of a gradient that no other question sees below a roundoff
    _form(name="many heads, long keys", batch=8, heads=16, queries=3, keys=130, directions=DIRECTED),
    _form(name="many heads, long queries", batch=8, heads=16, queries=130, keys=3, directions=DIRECTED),
    _form(name="several blocks", heads=1, queries=300, keys=333),
    _form(name="several blocks, causal", heads=2, queries=321, keys=321, causal=True),
    _form(name="rising logits, several blocks", heads=1, queries=130, keys=777, inputs="rising"),
    _form(name="many keys", heads=1, queries=37, keys=2099),
    _form(name="many queries", heads=1, queries=2099, keys=37),
    _form(name="many queries, causal", heads=1, queries=1099, keys=65, causal=True),
    _form(name="blocks in both, causal", heads=1, queries=600, keys=600, causal=True),
)

#: decides the class that is printed: more queries than any kernel takes at a time, at logit std 1
CLASS_FORM = _form(name="precision class", heads=1, queries=512, keys=64, dim=64)

#: asked again and again, with another between, at the end
REPEATED = SHAPE_FORMS[4]

ALL_FORMS = (
    *FIRST,
    CLASS_FORM,
    *REGIME_FORMS,
    *SHAPE_FORMS,
    *SCALE_FORMS,
    *LAYOUT_FORMS,
    *LONG_FORMS,
)


@lru_cache(maxsize=300)
def pose_gradients(form: GradientForm, dtype: str, seed: int) -> GradientQuestion | None:
    """The question of `form`, or None where `dtype` cannot hold its scores. Kept, with its references."""
    question = posed(form.form, dtype, seed)
    if question is None:
        return None
    rng = np.random.default_rng([seed, zlib.crc32(form.form.name.encode()), 1])
    upstream = round_to(UPSTREAMS[form.upstream](rng, question), dtype)
    return GradientQuestion(question, upstream, form.upstream_layout, form.certain)


def gradient_questions(dtype: str, seed: int) -> Iterator[GradientQuestion]:
    """Every question that `dtype` can hold, those that tell most first."""
    for form in ALL_FORMS:
        question = pose_gradients(form, dtype, seed)
        if question is not None:
            yield question
