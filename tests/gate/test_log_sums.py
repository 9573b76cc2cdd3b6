"""The gate of ln Z: right ones pass, of whole keys and of parts that are merged by it, and every fault is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.gate.forms import LOG_SUMS
from attnlab.gate.gate import EVERYTHING, Answers, examine
from attnlab.gate.questions import Question
from attnlab.problem.directions import LOG_SUM, OUTPUT
from attnlab.problem.dtypes import DTYPES, round_to
from attnlab.problem.problem import Problem, places
from attnlab.runs.check import check
from attnlab.theory.log_sum_budget import log_sums

Array = NDArray[np.float64]
#: of one question's problem and its cuts, output and ln Z in float64
Attention = Callable[[Problem, list[int]], tuple[Array, Array]]


def whole(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    found = log_sums(problem)
    return found.output, found.log_sum


def in_base_2(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, z = whole(problem, cuts)
    return output, z / np.log(2)


def without_the_largest_score(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    """ln Σ e^{s − m}: the largest score m is not added again. Where one key is seen it is 0."""
    output, z = whole(problem, cuts)
    top = _largest_score(problem)
    return output, np.where(np.isfinite(z), z - top, z)


def with_the_largest_score_twice(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, z = whole(problem, cuts)
    return output, np.where(np.isfinite(z), z + _largest_score(problem), z)


def _largest_score(problem: Problem) -> Array:
    """(batch, heads, queries, 1), 0 where nothing is seen."""
    group = problem.group
    key = np.repeat(problem.key.astype(float), group, axis=1)
    scores = problem.scale * problem.query.astype(float) @ key.swapaxes(-1, -2)
    if problem.softcap is not None:
        scores = problem.softcap * np.tanh(scores / problem.softcap)
    if problem.bias_array is not None:
        scores = scores + problem.bias_array
    seen = problem.mask.array(problem.shape)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    return np.where(np.isfinite(top), top, 0.0)


def zero_where_nothing_is_seen(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, z = whole(problem, cuts)
    return output, np.where(np.isneginf(z), 0.0, z)


def huge_where_nothing_is_seen(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, z = whole(problem, cuts)
    return output, np.where(np.isneginf(z), np.finfo(np.float32).min, z)


def without_sinks(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, _ = whole(problem, cuts)
    return output, whole(problem.with_(sinks=None), cuts)[1]


def of_all_keys(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    """The mask is forgotten, in ln Z alone."""
    from attnlab.problem.masks import EVERYTHING as ALL

    return whole(problem, cuts)[0], whole(problem.with_(mask=ALL), cuts)[1]


def a_thousandth_more(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    output, z = whole(problem, cuts)
    return output, z + 1e-3


def merged(weigh: Callable[[Array, Array, Array], Array]) -> Attention:
    """Parts merged by weights of another kind: from (all z_s, z, keys of each part), first axis the parts."""

    def attention(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
        output, z = whole(problem, cuts)
        if not cuts:
            return output, z
        pieces = [(at.stop - at.start, whole(part, [])) for at, part in problem.parts(cuts)]
        counts = np.array([count for count, _ in pieces], float).reshape(-1, 1, 1, 1, 1)
        of_parts = np.stack([found for _, (_, found) in pieces])
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            weights = np.nan_to_num(weigh(of_parts, z, counts), posinf=0.0)
        return (weights * np.stack([found for _, (found, _) in pieces])).sum(axis=0), z

    return attention


def sink_in_every_part(problem: Problem, cuts: list[int]) -> tuple[Array, Array]:
    """Its weight is taken once a part."""
    if problem.sinks is None or not cuts:
        return whole(problem, cuts)
    pieces = [whole(part.with_(sinks=problem.sinks), []) for _, part in problem.parts(cuts)]
    z = np.logaddexp.reduce([found for _, found in pieces])
    return sum(np.exp(found - z) * output for output, found in pieces), z


FAULTS: dict[str, Attention] = {
    "to base 2": in_base_2,
    "the largest score is not added": without_the_largest_score,
    "the largest score is added twice": with_the_largest_score_twice,
    "0 where nothing is seen": zero_where_nothing_is_seen,
    "the least number where nothing is seen": huge_where_nothing_is_seen,
    "sinks are forgotten": without_sinks,
    "masked keys are counted": of_all_keys,
    "merged without weights": merged(lambda z, whole, count: np.ones_like(z) / len(z)),
    "merged by numbers of keys": merged(lambda z, whole, count: count / count.sum()),
    "merged with weights that are not normalised": merged(lambda z, whole, count: np.exp(z - z.max(axis=0))),
    "merged with weights to base 2": merged(lambda z, whole, count: np.exp2(z - whole)),
    "a sink in every part": sink_in_every_part,
}


def asked(attention: Attention, stored: str | None = None) -> Callable[[Question], Answers]:
    """As a black box that rounds once; ln Z to the format `stored`, where one is given, before its own."""

    def ask(question: Question) -> Answers:
        if not question.log_sum:
            raise Declined("only ln Z is asked for here")
        problem = question.problem
        output, z = attention(problem, places(problem.shape.keys, question.splits))
        narrow = np.float64 if problem.dtype == "float64" else np.float32
        z = z if stored is None else round_to(z, stored).astype(np.float64)
        return {OUTPUT: round_to(output, problem.dtype), LOG_SUM: z[..., 0].astype(narrow)}

    return ask


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_ln_z_passes(dtype: str) -> None:
    """Rounded once, it is as exact as can be."""
    found = examine(asked(whole), dtype, directions=(LOG_SUM,))
    assert found.passed, found.fault
    assert len(LOG_SUMS) - 2 <= found.asked <= len(LOG_SUMS)  # float16 does not hold the largest logits
    assert found.log_sum_precision is not None and found.log_sum_precision.kind == "full precision inside"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ln_z_is_told(fault: str, dtype: str) -> None:
    found = examine(asked(FAULTS[fault]), dtype, directions=(LOG_SUM,))
    assert found.passed is False, fault
    assert found.fault is not None and found.fault.startswith("ln Z in ")


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("float64", "float32")]
)
def test_ln_z_that_was_stored_too_coarsely_is_told(dtype: str, stored: str) -> None:
    """Parts that are merged by it would be weighted wrongly: a bfloat16 of 8 is off by up to 0.016."""
    found = examine(asked(whole, stored), dtype, directions=(LOG_SUM,))
    assert found.passed is False


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_small_shift_of_ln_z_is_told(dtype: str) -> None:
    assert examine(asked(a_thousandth_more), dtype, directions=(LOG_SUM,)).passed is False


def test_who_gives_none_is_asked_a_few_times_and_goes_on_to_gradients() -> None:
    """As with gradients: what declines the plainest questions, of several shapes, is not asked the rest."""
    seen: list[str] = []

    def ask(question: Question) -> Answers:
        seen.append(question.kind)
        if question.log_sum or question.backward:
            raise Declined(f"no {question.kind}")
        problem = question.problem
        return {OUTPUT: round_to(log_sums(problem).output, problem.dtype)}

    found = examine(ask, "float64", directions=EVERYTHING)
    assert found.passed and seen.count(LOG_SUM) == seen.count("backward") == 4
    assert found.log_sum_refusal == f"no {LOG_SUM}" and found.gradient_refusal == "no backward"


GIVING = """
import numpy as np
LIBRARY = "numpy"
def attend(query, key, value, *, causal, scale):
    return attend_with_log_sum(query, key, value, causal=causal, scale=scale)[0]
def attend_with_log_sum(query, key, value, *, causal, scale):
    s = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    m = s.max(axis=-1, keepdims=True)
    w = np.exp(s - m)
    l = w.sum(axis=-1, keepdims=True)
    z = ({log_sum})[..., 0].astype(np.float64 if query.dtype == np.float64 else np.float32)
    return (w / l @ value.astype(np.float64)).astype(query.dtype), z
"""


@pytest.mark.parametrize(
    ("log_sum", "passed"), [("m + np.log(l)", True), ("m + np.log2(l)", False), ("np.log(l)", False)]
)
@pytest.mark.usefixtures("few_outputs")
def test_a_file_of_a_user_is_held_to_it(tmp_path: Path, log_sum: str, passed: bool) -> None:
    """In a process of its own, as every backend: `attnlab check` says of which question it was."""
    (tmp_path / "mine.py").write_text(GIVING.format(log_sum=log_sum))
    found = check("mine", [str(tmp_path)], dtypes=("float32",), lanes=1)
    assert found.passed is passed, found.reason
    assert set(asdict(found)["log_sums"]) == ({"float32"} if passed else set())
    assert passed or (found.reason or "").startswith("ln Z in float32")
