"""The questions of the gate about gradients: inputs as for the forward pass, and the gradient that arrives.

A gradient form is a form of `attnlab.accuracy.questions` and what ∂L/∂o is. As there, no form depends on a lucky seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy import questions
from attnlab.accuracy.evidence import DIRECTED
from attnlab.accuracy.form import Form
from attnlab.accuracy.questions import Question, posed
from attnlab.accuracy.reference import Reference, refer
from attnlab.contract.dtypes import round_to

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
    """One question before its arrays are drawn: a forward form, what ∂L/∂o is, and how that lies in memory.

    certain : nothing is rounded on the way back but the gradients themselves. directions : as of a `Form`, for
    gradients, whose independent errors are those of different heads: it needs a hundred.
    """

    form: Form
    upstream: str = "normal"
    upstream_layout: str = "contiguous"
    certain: bool = False
    directions: float | None = None


@dataclass(frozen=True, eq=False)
class GradientQuestion:
    """The forward question, and ∂L/∂o, (batch, heads, n_q, value_dim), as cast to its dtype."""

    question: Question
    upstream: NDArray[Any]
    upstream_layout: str
    certain: bool = False
    directions: float | None = None

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads, which the way back meets more than twice as often."""
        return 3 * self.question.pairs

    @cached_property
    def references(self) -> tuple[Reference, Reference, Reference]:
        """The right gradients of query, key and value, and their bounds."""
        found = refer(self.question.problem.with_(output_gradient=self.upstream))
        return found["query gradient"], found["key gradient"], found["value gradient"]

    @property
    def text(self) -> str:
        """Name and sizes, for a message."""
        layout = f", output gradient {self.upstream_layout}" if self.upstream_layout != "contiguous" else ""
        return f"gradients in {self.question.text}{layout}"


def _named(forms: Iterable[Form], *names: str) -> tuple[GradientForm, ...]:
    """Forms of the forward gate, whose references serve here as well."""
    by_name = {form.name: form for form in forms}
    return tuple(GradientForm(by_name[name]) for name in names)


def _many_heads(name: str, *, queries: int = 20, keys: int = 24, causal: bool = False) -> GradientForm:
    """Whose errors are independent, so that a part that all share shows; the root of their scale rounds nothing."""
    form = Form(name=name, batch=8, heads=16, queries=queries, keys=keys, causal=causal)
    return GradientForm(form, directions=DIRECTED)


#: first what most faults fail, so that a wrong backend is told quickly
FIRST = (
    *_named(questions.FIRST, "normal", "normal, causal"),
    _many_heads("many heads"),
    _many_heads("many heads, causal", queries=24, causal=True),
    GradientForm(
        Form(name="keys of one score", batch=4, heads=8, queries=16, keys=4, inputs="hidden keys"),
        upstream="signs",
        certain=True,
    ),
    *_named(questions.FIRST, "logit std 2", "look-up", "staircase"),
)

REGIME_FORMS = _named(
    questions.REGIME_FORMS,
    "logit std 4",
    "logit std 8, causal",
    "shifted means",
    "outliers",
    "duplicated maxima",
    "logits above 1000",
    "logits below -50000",
    "rows at different levels",
    "V = 1",
    "V = K",
    "equal logits",
)

UPSTREAM_FORMS = (
    GradientForm(Form(name="gradient of a sum", batch=2, heads=3, queries=33, keys=40), "ones", "one number"),
    GradientForm(Form(name="gradient of one row", queries=33, keys=33, causal=True), "one row"),
    GradientForm(Form(name="gradient of a square", queries=33, keys=40), "output"),
    GradientForm(Form(name="small output gradient", queries=20, keys=30), "small"),
    GradientForm(Form(name="large output gradient", queries=20, keys=30), "large"),
)

SHAPE_FORMS = tuple(GradientForm(form) for form in (*questions.SHAPE_FORMS, *questions.SCALE_FORMS))

LAYOUT_FORMS = tuple(
    GradientForm(form, upstream_layout=layout)
    for form, layout in zip(
        (form for form in questions.LAYOUT_FORMS if form.layout != "refilled"),
        ("contiguous", "heads inside", "transposed", "sliced", "contiguous"),
        strict=True,
    )
) + tuple(
    GradientForm(
        Form(name="unusual output gradient", batch=2, heads=3, queries=21, keys=34), "normal", layout
    )
    for layout in ("transposed", "heads inside")
)

LONG_FORMS = (
    # what only a second block adds is a part of a gradient that no other question sees below a roundoff
    _many_heads("many heads, long keys", queries=3, keys=130),
    _many_heads("many heads, long queries", queries=130, keys=3),
    GradientForm(Form(name="several blocks, gradients", heads=1, queries=300, keys=333)),
    GradientForm(Form(name="several blocks, gradients, causal", heads=1, queries=321, keys=321, causal=True)),
    *_named(questions.LONG_FORMS, "rising logits, several blocks"),
    GradientForm(Form(name="more keys than a block", heads=1, queries=37, keys=2099)),
    GradientForm(Form(name="more queries than a block", heads=1, queries=2099, keys=37)),
    GradientForm(Form(name="more queries than a block, causal", heads=1, queries=1099, keys=65, causal=True)),
)

#: decides the class that is printed: more queries than any kernel takes at a time, at logit std 1
CLASS_FORM = GradientForm(Form(name="precision class of gradients", heads=1, queries=512, keys=64, dim=64))

#: asked again and again, with another between, at the end
REPEATED = SHAPE_FORMS[4]

ALL_FORMS = (
    *FIRST,
    CLASS_FORM,
    *REGIME_FORMS,
    *UPSTREAM_FORMS,
    *SHAPE_FORMS,
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
    return GradientQuestion(question, upstream, form.upstream_layout, form.certain, form.directions)


def gradient_questions(dtype: str, seed: int) -> Iterator[GradientQuestion]:
    """Every question that `dtype` can hold, those that tell most first.

    In float64 the long ones are left out, as are those of `coverage` for the output.
    """
    for form in ALL_FORMS:
        if dtype == "float64" and form in LONG_FORMS:
            continue
        question = pose_gradients(form, dtype, seed)
        if question is not None:
            yield question
