"""A question of the gate: a problem with its arrays, how they lie in memory, and how its answers are weighed.

`posed` draws the arrays of a form for a dtype and a seed; `questions` are all that are asked: those of
`tables`, and others whose conditions are drawn at random within declared ranges, a new set for every seed
and dtype. A fault of one path and the question that takes it mirror each other: who writes the tables knows which
head_dim they have. What is drawn here is known to nobody before. A question whose problem has an output gradient asks
for the gradients of query, key and value as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness import tables
from attnlab.correctness.conditions import CONSTRUCTIONS, Form
from attnlab.correctness.evidence import allowance
from attnlab.correctness.reference import Reference, refer
from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Part, Shape
from attnlab.workload.vocabulary import DTYPES, LOG_SUM, OUTPUT, round_to
from attnlab.workload.workload import Workload

#: two products of this size, unscaled, still fit float16: an eager backend may be asked
_LARGEST_PRODUCT = 60000.0
#: random streams beside that of query, key and value, so that a change of one array leaves the others as they were
_MASK, _BIAS, _SINKS, _UPSTREAM = 1, 2, 3, 4

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Question:
    """A problem, with arrays as cast to its dtype, and what is asked of the answers.

    form : the condition that it was drawn from. forward : the same without gradients. changed : what the problem is,
    where it is another than that of the form.
    """

    form: Form
    problem: Inputs
    forward: Question | None = None
    changed: str = ""

    @property
    def name(self) -> str:
        """The form's."""
        return self.form.name

    @property
    def condition(self) -> str:
        """All but the name, as text."""
        return self.changed or self.form.text

    @property
    def layouts(self) -> tuple[str, str]:
        """How query, key and value, and the output's gradient, lie in memory."""
        return self.form.layout.replace("_", " "), self.form.gradient_layout.replace("_", " ")

    @property
    def dtype(self) -> str:
        """The problem's."""
        return self.problem.dtype

    @property
    def backward(self) -> bool:
        """Whether gradients are asked for."""
        return self.problem.output_gradient is not None

    @property
    def kind(self) -> str:
        """Which of the gate's directions it belongs to."""
        return "backward" if self.backward else LOG_SUM if self.form.log_sum else "forward"

    def workload(self, device: str = "cpu") -> Workload:
        """What a backend is asked for that is to answer it."""
        directions = {"backward": "training", LOG_SUM: "forward_with_log_sum"}
        direction = directions.get(self.kind, "forward")
        return Workload.of_problem(self.problem, device=device, direction=direction)

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads; the way back meets them more than twice as often."""
        return int(np.prod(self.problem.shape)) * (3 if self.backward else 1)

    @property
    def rows(self) -> list[int] | None:
        """The query rows whose output is judged, None for all."""
        n_q, every = self.problem.shape.queries, self.form.every
        return None if every == 1 else sorted({*range(0, n_q, every), n_q - 1})

    @cached_property
    def references(self) -> dict[str, Reference]:
        """The right answers and their bounds, by name; the output's is shared with the question without gradients."""
        return self._referred(1, None if self.forward is None else self.forward.reference)

    def references_of(self, parts: int) -> dict[str, Reference]:
        """The same for who cuts the keys into so many parts, and rounds and merges their outputs."""
        return self.references if parts == 1 else self._referred(parts, None)

    def _referred(self, parts: int, known: Reference | None) -> dict[str, Reference]:
        return refer(self.problem, self.rows, output=known, log_sum=self.form.log_sum, parts=parts)

    @property
    def reference(self) -> Reference:
        """That of the output."""
        return self.references[OUTPUT]

    def weighing(self, name: str) -> dict[str, Any]:
        """How the answer `name` is weighed."""
        form = self.form
        if name == OUTPUT:
            return {"exact": form.exact and not form.log_sum, "directions": form.z}
        if name == LOG_SUM:
            return {"directions": None}
        return {"exact": form.exact_gradients, "directions": form.gradient_z}

    @property
    def text(self) -> str:
        """Dtype, name and the whole condition, for a message."""
        of = {"backward": "gradients in ", LOG_SUM: "ln Z in "}.get(self.kind, "")
        return f"{of}{self.dtype}, {self.name} ({self.condition})"


# more than there are in all dtypes: asked in a circle, a smaller cache would hold none of them
@lru_cache(maxsize=4096)
def posed(form: Form, dtype: str, seed: int) -> Question | None:
    """The question of `form`, kept with its references, or None where `dtype` cannot hold its numbers or its scores."""
    if form.upstream:
        plain = replace(
            form, upstream="", gradient_layout="contiguous", gradient_z=None, exact_gradients=False
        )
        forward = posed(plain, dtype, seed)
        return None if forward is None else _with_gradient(forward, form, seed)
    exact = drawn(form, seed)
    q, k, v = (round_to(array, dtype) for array in exact)
    for one, cast in zip(exact, (q, k, v), strict=True):
        if not np.isfinite(cast).all() or (one.any() and not cast.any()):
            return None
    if dtype == "float16":
        wide = np.repeat(k, q.shape[1] // k.shape[1], axis=1).astype(float)
        if np.abs(q.astype(float) @ wide.swapaxes(2, 3)).max() > _LARGEST_PRODUCT:
            return None
    bias = form.biased(_stream(form, seed, _BIAS))
    sinks = _stream(form, seed, _SINKS).standard_normal(form.heads) if form.sinks else None
    problem = Inputs.of(
        *(q, k, v),
        mask=form.masked(_stream(form, seed, _MASK)),
        bias=bias if bias is None or isinstance(bias, Alibi) else round_to(bias, dtype),
        scale=form.scaled_by,
        softcap=form.softcap,
        sinks=None if sinks is None else round_to(sinks, dtype),
        dtype=dtype,
    )
    return Question(form, problem)


@lru_cache(maxsize=4096)
def drawn(form: Form, seed: int) -> tuple[Array, Array, Array]:
    """Query, key and value of `form` before they are cast: the same for all dtypes."""
    rng = _stream(form, seed)
    kv_heads = form.heads if form.kv_heads is None else form.kv_heads
    value_dim = form.dim if form.value_dim is None else form.value_dim
    shapes = (
        (form.batch, form.heads, form.queries, form.dim),
        (form.batch, kv_heads, form.keys, form.dim),
        (form.batch, kv_heads, form.keys, value_dim),
    )
    q, k, v = (rng.standard_normal(shape) for shape in shapes)
    draw = CONSTRUCTIONS[form.inputs]
    q, k, v = draw(q, k, v, form.scaled_by, rng)
    if form.values == "ones":
        v = np.ones_like(v)
    elif form.values == "keys":
        v = k
    for array in (q, k, v):
        array.flags.writeable = False
    return q, k, v


def _stream(form: Form, seed: int, *which: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(form.name.encode()), form.draw, *which])


def _with_gradient(forward: Question, form: Form, seed: int) -> Question:
    """`forward` with the output's gradient that `form` names."""
    shape = forward.problem.output_shape
    normal = _stream(form, seed, _UPSTREAM).standard_normal(shape)
    last_alone = np.zeros_like(normal)
    last_alone[:, :, -1:] = normal[:, :, -1:]
    made: dict[str, Callable[[], Array]] = {
        "normal": lambda: normal,
        "ones": lambda: np.ones(shape),  # the loss is the sum of the output
        "one_row": lambda: last_alone,  # it looks at the last query alone: what reaches it from others shows
        "output": lambda: forward.reference.output,  # it is half the squared norm of the output
        "signs": lambda: np.sign(np.rint(normal)),  # no product of them with whole numbers rounds
        "small": lambda: normal * 2.0**-8,
        "large": lambda: normal * 2.0**8,
    }
    gradient = round_to(made[form.upstream](), forward.dtype)
    return Question(form, forward.problem.with_(output_gradient=gradient), forward)


def questions(dtype: str, seed: int, kind: str = "forward") -> Iterator[Question]:
    """Every question of a kind that `dtype` can hold, those that tell most first.

    kind : about outputs, "forward"; about gradients, "backward"; about ln Z, of whole keys and of parts of them that
    are merged, `LOG_SUM`. In float64 the fixed ones alone: what has blocks and paths of its own has them for the
    formats that it is fast in.
    """
    backward = kind == "backward"
    forms: Iterable[Form] = tables.BACKWARD if backward else tables.FORWARD
    if kind == LOG_SUM:
        forms = tables.LOG_SUMS
    elif dtype != "float64":
        last = tables.BACKWARD_LONG if backward else (*tables.LONG, *tables.PATHS)
        forms = chain(forms, drawn_forms(dtype, seed, backward=backward), last)
    for form in forms:
        question = posed(form, dtype, seed)
        if question is not None:
            yield question


# -- relations between answers: what must hold between two calls, whatever the right answer of each is. Every question
# -- that a relation asks is judged by itself as well. A relation's own tolerance is the two answers' allowances in
# -- quadrature, and beside them what casting the changed inputs to their dtype costs, which is known


#: what one or several outputs say about another
Statement = Callable[..., Array]

_BASE = Form.parse("relations: b2 n29x33")
_CAUSAL = Form.parse("relations, causal: b2 n31 causal")


@dataclass(frozen=True, eq=False)
class Relation:
    """`statement` of the outputs of `given` is the output of `asked`."""

    name: str
    given: tuple[Question, ...]
    asked: Question
    statement: Statement

    def fault(self, outputs: tuple[NDArray[Any], ...], output: NDArray[Any]) -> str | None:
        """How the answers contradict each other, or None. Outputs in the order of `given`."""
        said = self.statement(*(one.astype(np.float64) for one in outputs))
        off = float(np.linalg.norm(output.astype(np.float64) - said))
        exact = self.asked.reference.output
        known = float(np.linalg.norm(exact - self.statement(*(one.reference.output for one in self.given))))
        allowed = known + float(np.sqrt(sum(_allowed(one) ** 2 for one in (*self.given, self.asked))))
        if off <= allowed:
            return None
        norm = max(float(np.linalg.norm(exact)), 1e-300)
        return f"two answers differ by {off / norm:.3g} relative, at most {allowed / norm:.3g} is rounding"


@lru_cache(maxsize=8)
def relations(dtype: str, seed: int) -> tuple[Relation, ...]:
    """Every relation, on inputs drawn from `seed`; kept, with its references, for the next backend."""
    return tuple(_relations(dtype, seed))


def _relations(dtype: str, seed: int) -> Iterator[Relation]:
    base, causal = posed(_BASE, dtype, seed), posed(_CAUSAL, dtype, seed)
    assert base is not None and causal is not None
    rng = np.random.default_rng([seed, 12])
    problem = base.problem
    order, rows = rng.permutation(problem.key.shape[2]), rng.permutation(problem.query.shape[2])
    moved = _changed_alike(base, "keys permuted", lambda x: x[:, :, order], "key", "value")
    yield Relation("permuting keys with their values changes nothing", (base,), moved, _same)
    twice = _changed_alike(base, "keys twice", lambda x: np.tile(x, (1, 1, 2, 1)), "key", "value")
    yield Relation("writing every key twice changes nothing", (base,), twice, _same)
    offset = 2 * rng.standard_normal(problem.key.shape[-1])
    for question in (base, causal):
        shifted = _changed(question, "keys shifted", key=question.problem.key + offset)
        yield Relation("adding one vector to all keys changes nothing", (question,), shifted, _same)
    turned = _changed_alike(base, "queries permuted", lambda x: x[:, :, rows], "query")
    yield Relation("permuting queries permutes outputs", (base,), turned, lambda o: o[:, :, rows])
    halved = _changed(base, "scale in the query", query=2 * problem.query)
    halved = replace(halved, problem=halved.problem.with_(scale=problem.scale / 2))
    yield Relation("the scale may be absorbed in the query", (base,), halved, _same)

    seen = causal.problem.query.shape[2] // 2
    prefix = _changed_alike(causal, "prefix", lambda x: x[:, :, :seen])
    yield Relation("a causal row sees its prefix only", (causal,), prefix, lambda o: o[:, :, :seen])
    k, v = causal.problem.key.copy(), causal.problem.value.copy()
    k[:, :, seen:], v[:, :, seen:] = k[:, :, seen:][:, :, ::-1], 3.0
    future = _changed(causal, "another future", key=k, value=v)

    def known(output: Array) -> Array:
        """The others from their own exact answer, so that they weigh nothing."""
        return np.concatenate([output, future.reference.output[:, :, seen:]], axis=2)

    yield Relation("a causal row does not see the future", (prefix,), future, known)

    doubled = _changed(base, "values times -2", value=-2 * problem.value)
    yield Relation("the output is linear in the values", (base,), doubled, lambda o: -2 * o)
    other = _changed(base, "other values", value=rng.standard_normal(problem.value.shape))
    total = _changed(base, "sum of values", value=problem.value.astype(np.float64) + other.problem.value)
    yield Relation("outputs add as values do", (base, other), total, np.add)
    for name, part in (("batch", np.s_[1:]), ("head", np.s_[:, 1:])):
        alone = _changed_alike(base, f"one {name} alone", itemgetter(part))
        yield Relation(f"a {name} does not see another", (base,), alone, itemgetter(part))
    yield _split(base)


def _split(base: Question) -> Relation:
    """Two halves of the keys, merged by their partition functions, give the whole.

    The halves report ln Z themselves: a zero key is appended to each, flagged by a 1 in the last value column,
    which all other keys have at 0. Its weight there is w = 1/(1 + Z), so Z = 1/w − 1, and the half's own
    output is its answer over 1 − w.
    """
    half = base.problem.key.shape[2] // 2
    flag = np.zeros_like(base.problem.value[:, :, :1])
    flag[..., -1] = 1
    whole = _changed(base, "whole", value=_unflagged(base.problem.value))
    parts = tuple(
        _changed(
            base,
            f"{name} half of the keys and a zero key",
            key=np.concatenate(
                [base.problem.key[:, :, cut], np.zeros_like(base.problem.key[:, :, :1])], axis=2
            ),
            value=np.concatenate([_unflagged(base.problem.value[:, :, cut]), flag], axis=2),
        )
        for name, cut in (("first", np.s_[:half]), ("second", np.s_[half:]))
    )
    return Relation("halves of the keys merge by their ln Z", parts, whole, _merge)


def _merge(first: Array, second: Array) -> Array:
    flags = [one[..., -1:] for one in (first, second)]
    weights = [1 / flag - 1 for flag in flags]
    sums = [one[..., :-1] / flag for one, flag in zip((first, second), flags, strict=True)]
    merged = (sums[0] + sums[1]) / (weights[0] + weights[1])
    return np.concatenate([merged, np.zeros_like(flags[0])], axis=-1)


def _unflagged(v: NDArray[Any]) -> NDArray[Any]:
    v = v.copy()
    v[..., -1] = 0
    return v


def _same(output: Array) -> Array:
    return output


def _changed(question: Question, name: str, **arrays: NDArray[Any]) -> Question:
    """`question` with other arrays, rounded to its dtype; told by its name and its sizes."""
    cast: dict[str, Any] = {key: round_to(array, question.dtype) for key, array in arrays.items()}
    problem = question.problem.with_(**cast)
    form = replace(question.form, name=name, z=None)
    return replace(question, form=form, problem=problem, changed=Workload.of_problem(problem).label)


def _changed_alike(
    question: Question, name: str, change: Callable[[NDArray[Any]], NDArray[Any]], *which: str
) -> Question:
    """The same change of the arrays `which`, or of query, key and value."""
    names = which or ("query", "key", "value")
    return _changed(question, name, **{one: change(getattr(question.problem, one)) for one in names})


def _allowed(question: Question) -> float:
    return allowance(question.reference.lenient) * float(np.linalg.norm(question.reference.output))


# -- conditions drawn at random

#: conditions a dtype, for outputs and for gradients
FORWARD_COUNT, BACKWARD_COUNT = 24, 12
#: most scores of one condition, over all batches and heads: fewer for gradients, whose references take longer. And
#: numbers of its query: a few milliseconds
_FORWARD_SCORES, _BACKWARD_SCORES, _NUMBERS = 24_000, 8_000, 48_000
_LARGEST_DIM = 256
#: lengths at which a kernel changes its tile; they are drawn with their neighbours
_EDGES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_LONGEST = 1100
_HEADS, _BATCH = 12, 4
_LAYOUTS = ("heads_inside", "transposed", "sliced", "mixed", "mixed_2", "cache")
_INPUTS = ("logit_std_2", "logit_std_4", "shifted_means", "outliers", "duplicated_maxima")
#: axes of boolean arrays and biases; all that broadcast
_AXES = ("qk", "11qk", "1hqk", "b1qk", "bhqk", "b11k", "1h1k", "bh1k")


def drawn_forms(dtype: str, seed: int, *, backward: bool = False) -> tuple[Form, ...]:
    """The conditions of a dtype and a seed, for outputs or for gradients."""
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode()), int(backward)])
    count = BACKWARD_COUNT if backward else FORWARD_COUNT
    dims = _dims(dtype, seed, backward)
    return tuple(_form(rng, f"drawn {at + 1}", dims[at], backward) for at in range(count))


def _dims(dtype: str, seed: int, backward: bool) -> list[int]:
    """Head dimensions: half of them multiples of 8, for which kernels are compiled, half any.

    Dtypes and directions share one order and follow each other in it, so that none is asked twice before all were: a
    fault of one multiple of 8 meets an output in some dtype.
    """
    rng = np.random.default_rng([seed, zlib.crc32(b"dims")])
    eights = 8 * (1 + rng.permutation(_LARGEST_DIM // 8))
    others = 1 + rng.permutation(_LARGEST_DIM)
    others = others[others % 8 != 0]
    half = (BACKWARD_COUNT if backward else FORWARD_COUNT) // 2
    place = DTYPES.index(dtype) * half + (len(DTYPES) * FORWARD_COUNT // 2 if backward else 0)
    found = [int(order[(place + at) % order.size]) for order in (eights, others) for at in range(half)]
    return [found[at] for at in rng.permutation(len(found))]


def _form(rng: np.random.Generator, name: str, dim: int, backward: bool) -> Form:
    queries, keys = _length(rng, short=0.2), _length(rng, short=0.05)
    if rng.random() < 0.3:
        queries = keys = min(queries, keys)
    scores = _BACKWARD_SCORES if backward else _FORWARD_SCORES
    if queries * keys > scores:
        queries = max(1, scores // keys)
    room = max(1, min(scores // (queries * keys), _NUMBERS // (dim * max(queries, keys))))
    batch = int(rng.integers(1, min(_BATCH, room) + 1)) if rng.random() < 0.5 else 1
    heads = int(rng.integers(1, min(_HEADS, room // batch) + 1))
    divisors = [one for one in range(1, heads + 1) if heads % one == 0]
    kv_heads = int(rng.choice(divisors)) if rng.random() < 0.4 else heads
    shape = Shape(batch, heads, queries, keys)
    mask, array = _mask(rng, shape)
    chance = rng.random(6)
    scale = _scale(rng, dim) if chance[4] < 0.25 else None
    return Form(
        name=name,
        batch=batch,
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        queries=queries,
        keys=keys,
        dim=dim,
        value_dim=int(rng.integers(1, 160)) if chance[0] < 0.15 else None,
        mask=mask,
        array=array,
        bias=_bias(rng) if chance[1] < 0.2 else "",
        softcap=round(float(np.exp(rng.uniform(np.log(1), np.log(40)))), 2) if chance[2] < 0.12 else None,
        sinks=bool(chance[3] < 0.12),
        scale=scale,
        inputs=str(rng.choice(_INPUTS)) if chance[5] < 0.3 and scale != 0 else "normal",
        layout=str(rng.choice(_LAYOUTS)) if rng.random() < 0.25 else "contiguous",
        upstream="normal" if backward else "",
        gradient_layout=str(rng.choice(_LAYOUTS[:2])) if backward and rng.random() < 0.25 else "contiguous",
    )


def _length(rng: np.random.Generator, short: float) -> int:
    """One now and then; else the edge of a block or its neighbours, or any length, short ones more often."""
    if rng.random() < short:
        return 1
    if rng.random() < 0.5:
        return int(rng.choice(_EDGES)) + int(rng.integers(-1, 2))
    return int(np.exp(rng.uniform(np.log(2), np.log(_LONGEST))))


def _mask(rng: np.random.Generator, shape: Shape) -> tuple[str, str]:
    """Texts of a mask of no, one or two parts, of whichever kinds there are, and the axes of a boolean array."""
    if rng.random() < 0.35:
        return "", ""
    kinds = [Part.kinds[name] for name in sorted(Part.kinds)]
    parts = (kinds[int(at)].drawn(rng, shape) for at in rng.permutation(len(kinds))[: rng.integers(1, 3)])
    texts = [part.text.replace(" ", "") for part in parts if part is not None]
    array = str(rng.choice(_AXES)) if rng.random() < 0.2 else ""
    return "&".join(texts), array


def _bias(rng: np.random.Generator) -> str:
    if rng.random() < 0.3:
        return "alibi"
    return str(rng.choice(_AXES)) + ("-" if rng.random() < 0.2 else "")


def _scale(rng: np.random.Generator, dim: int) -> float:
    """Within a factor of 4 of the usual one, of either sign, 0 now and then."""
    if rng.random() < 0.05:
        return 0.0
    size = float(np.exp(rng.uniform(-1.4, 1.0))) / dim**0.5
    return float(round(size if rng.random() < 0.75 else -size, 4))


def is_drawn(name: str) -> bool:
    """Whether a question of that name was drawn here."""
    return name.startswith("drawn ")
