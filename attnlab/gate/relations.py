"""Relations between answers: what must hold between two calls, whatever the right answer of each is.

Every question that a relation asks is judged by itself as well. A relation's own tolerance is the two answers'
allowances in quadrature, and beside them what casting the changed inputs to their dtype costs, which is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.gate.conditions import Form
from attnlab.gate.evidence import allowance
from attnlab.gate.questions import Question, posed
from attnlab.problem.vocabulary import round_to
from attnlab.problem.workload import Workload

Array = NDArray[np.float64]
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
    whole = _changed(base, "whole", value=_unflagged(base.problem.value))
    parts = tuple(
        _changed(
            base,
            f"{name} half of the keys and a zero key",
            key=np.concatenate(
                [base.problem.key[:, :, cut], np.zeros_like(base.problem.key[:, :, :1])], axis=2
            ),
            value=_flagged(base.problem.value[:, :, cut]),
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


def _flagged(v: NDArray[Any]) -> NDArray[Any]:
    flag = np.zeros_like(v[:, :, :1])
    flag[..., -1] = 1
    return np.concatenate([_unflagged(v), flag], axis=2)


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
