"""The gate of ln Z, of whole keys and of parts that are merged by it: right ones pass, and every fault is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.correctness.gate import EVERYTHING, FORWARD, Answers, examine
from attnlab.correctness.questions import Question
from attnlab.correctness.tables import LOG_SUMS
from attnlab.errors import Declined
from attnlab.lab.theory import log_sums
from attnlab.workload.inputs import Inputs, places
from attnlab.workload.masks import EVERYTHING as ALL
from attnlab.workload.vocabulary import DTYPES, LOG_SUM, OUTPUT, round_to

Array = NDArray[np.float64]
#: output and ln Z in float64, of a problem and where its keys are cut
Attention = Callable[[Inputs, list[int]], tuple[Array, Array]]


def whole(problem: Inputs, cuts: list[int]) -> tuple[Array, Array]:
    found = log_sums(problem)
    return found.output, found.log_sum


def other(change: Callable[[Array, Inputs], Array]) -> Attention:
    """Another ln Z, of the right one and the problem."""

    def attention(problem: Inputs, cuts: list[int]) -> tuple[Array, Array]:
        output, z = whole(problem, cuts)
        return output, change(z, problem)

    return attention


def merged(weigh: Callable[[Array, Array, Array], Array]) -> Attention:
    """Parts merged by weights of another kind: from (all z_s, z, keys of each part), first axis the parts."""

    def attention(problem: Inputs, cuts: list[int]) -> tuple[Array, Array]:
        output, z = whole(problem, cuts)
        if not cuts:
            return output, z
        pieces = [(at.stop - at.start, log_sums(part)) for at, part in problem.parts(cuts)]
        counts = np.array([count for count, _ in pieces], float).reshape(-1, 1, 1, 1, 1)
        of_parts = np.stack([found.log_sum for _, found in pieces])
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            weights = np.nan_to_num(weigh(of_parts, z, counts), posinf=0.0)
        return (weights * np.stack([found.output for _, found in pieces])).sum(axis=0), z

    return attention


def sink_in_every_part(problem: Inputs, cuts: list[int]) -> tuple[Array, Array]:
    """Its weight is taken once a part."""
    if problem.sinks is None or not cuts:
        return whole(problem, cuts)
    pieces = [log_sums(part.with_(sinks=problem.sinks)) for _, part in problem.parts(cuts)]
    z = np.logaddexp.reduce([found.log_sum for found in pieces])
    return sum(np.exp(found.log_sum - z) * found.output for found in pieces), z


FAULTS: dict[str, Attention] = {
    "to base 2": other(lambda z, p: z / np.log(2)),
    "0 where nothing is seen": other(lambda z, p: np.where(np.isneginf(z), 0.0, z)),
    "sinks are forgotten": other(lambda z, p: log_sums(p.with_(sinks=None)).log_sum),
    "masked keys are counted": other(lambda z, p: log_sums(p.with_(mask=ALL)).log_sum),
    "a hundredth more": other(lambda z, p: z + 1e-2),
    "merged without weights": merged(lambda z, whole, count: np.ones_like(z) / len(z)),
    "merged by numbers of keys": merged(lambda z, whole, count: count / count.sum()),
    "merged with weights that are not normalised": merged(lambda z, whole, count: np.exp(z - z.max(axis=0))),
    "merged with weights to base 2": merged(lambda z, whole, count: np.exp2(z - whole)),
    "a sink in every part": sink_in_every_part,
}


def asked(attention: Attention, stored: str | None = None) -> Callable[[Question], Answers]:
    """As a black box that rounds once; ln Z to the format `stored`, where one is given, before its own."""

    def ask(question: Question) -> Answers:
        if not question.form.log_sum:
            raise Declined("only ln Z is asked for here")
        problem = question.problem
        output, z = attention(problem, places(problem.shape.keys, question.form.splits))
        narrow = np.float64 if problem.dtype == "float64" else np.float32
        z = z if stored is None else round_to(z, stored).astype(np.float64)
        return {OUTPUT: round_to(output, problem.dtype), LOG_SUM: z[..., 0].astype(narrow)}

    return ask


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_ln_z_passes_and_one_that_was_stored_coarsely_does_not(dtype: str) -> None:
    """Parts that are merged by it would be weighted wrongly: a bfloat16 of 8 is off by up to 0.016."""
    found = examine(asked(whole), dtype, directions=(LOG_SUM,))
    assert found.passed, found.fault
    assert len(LOG_SUMS) - 2 <= found.asked <= len(LOG_SUMS)  # float16 does not hold the largest logits
    assert found.precision[LOG_SUM].kind == "full precision inside"
    coarse = asked(whole, {"float64": "float32", "float16": "float16"}.get(dtype, "bfloat16"))
    assert examine(coarse, dtype, directions=(LOG_SUM,)).passed is False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ln_z_is_told(fault: str) -> None:
    dtype = DTYPES[list(FAULTS).index(fault) % len(DTYPES)]
    found = examine(asked(FAULTS[fault]), dtype, directions=(LOG_SUM,))
    assert found.passed is False and (found.fault or "").startswith("ln Z in ")


def test_who_gives_none_is_asked_a_few_times_and_goes_on_to_gradients() -> None:
    """As with gradients: what declines the plainest questions, of several shapes, is not asked the rest."""
    seen: list[str] = []

    def ask(question: Question) -> Answers:
        seen.append(question.kind)
        if question.kind != FORWARD:
            raise Declined(f"no {question.kind}")
        return {OUTPUT: round_to(question.reference.output, question.dtype)}

    found = examine(ask, "float64", directions=EVERYTHING)
    assert found.passed and seen.count(LOG_SUM) == seen.count("backward") == 4
    assert found.refusal == {LOG_SUM: f"no {LOG_SUM}", "backward": "no backward"}


# -- who rounds the outputs of parts before it merges them


def in_two(question: Question, factor: float = 1.0) -> Answers:
    """Two halves, each rounded to the inputs' format, merged in float64."""
    problem = question.problem
    if question.form.splits > 1 or problem.sinks is not None:
        raise Declined("whole keys without sinks only")
    cuts = places(problem.shape.keys, 2) if problem.shape.keys > 1 else []
    found = [log_sums(part) for _, part in problem.parts(cuts)]
    logarithms = np.stack([one.log_sum for one in found])
    top = np.where(np.isfinite(logarithms).any(axis=0), logarithms.max(axis=0), 0.0)
    shares = np.exp(logarithms - top)
    total = shares.sum(axis=0)
    rounded = np.stack([round_to(one.output, problem.dtype).astype(float) for one in found])
    merged_ = (shares * rounded).sum(axis=0) / np.where(total > 0, total, 1.0)
    return {OUTPUT: round_to(round_to(merged_, problem.dtype).astype(float) * factor, problem.dtype)}


def test_rounded_parts_are_right_where_they_are_said() -> None:
    """They do not excuse a wrong answer, five units in the last place off."""
    assert examine(in_two, "bfloat16", directions=(FORWARD,), parts=2).fault is None
    unsaid = examine(in_two, "bfloat16", directions=(FORWARD,)).fault
    assert unsaid is not None and "predicted standard deviations" in unsaid
    off = examine(lambda one: in_two(one, 1 + 5 * 2.0**-8), "bfloat16", directions=(FORWARD,), parts=2)
    assert off.fault
