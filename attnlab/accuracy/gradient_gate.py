"""The accuracy gate for gradients: every question about them, put to a black box in one dtype.

A black box answers with its output and the gradients of query, key and value. The output is judged too: a kernel
that will be differentiated may be another than one that will not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy.evidence import Evidence, told_apart, weigh
from attnlab.accuracy.gate_result import Examined, Precision
from attnlab.accuracy.gradient_questions import (
    CLASS_FORM,
    FIRST,
    REPEATED,
    GradientQuestion,
    gradient_questions,
    pose_gradients,
)
from attnlab.accuracy.question_budget import Asking
from attnlab.libraries.numpy_library import NumPy
from attnlab.measuring.probe import Misbehaved, Witness, laid_out
from attnlab.theory.gradient_budget import GRADIENT_CLASSES

RESULTS = ("output", "query gradient", "key gradient", "value gradient")
Gradients = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

#: a question to the output and the three gradients; raises Declined, or Misbehaved for what no caller expects
AskGradients = Callable[[GradientQuestion], Gradients]


class GradientSession:
    """One black box under examination in one dtype."""

    def __init__(self, asking: Asking[GradientQuestion, Gradients], dtype: str, seed: int) -> None:
        self.asking, self.dtype, self.seed = asking, dtype, seed
        self.precision: Precision | None = None

    def judge(self, question: GradientQuestion) -> str | None:
        """Put one question and weigh the answers; a fault names the question."""
        found = self._answer(question)
        return f"{question.text}: {found}" if isinstance(found, str) else None

    def repeat(self) -> str | None:
        """One question once more, after all others: gradients must not depend on what was asked before."""
        first, other = (pose_gradients(form, self.dtype, self.seed) for form in (REPEATED, FIRST[0]))
        assert first is not None and other is not None
        answers = [self._answer(question) for question in (first, first, other, first)]
        given = [one for one in answers if one is not None and not isinstance(one, str)]
        if len(given) < len(answers):
            bad = next((one for one in answers if isinstance(one, str)), None)
            return f"{first.text}: {bad}, when asked again" if bad else None
        for at, (name, reference) in enumerate(zip(RESULTS[1:], first.references, strict=True), start=1):
            told = told_apart(
                [given[time][at] for time in (0, 1, 3)], ("at once", "after another call"), reference
            )
            if told:
                return f"{first.text}: {name}: {told}"
        return None

    def _answer(self, question: GradientQuestion) -> Gradients | str | None:
        """The answers where they are right, what is wrong with the first that is not, or None for no answer."""
        found = self.asking.put(question)
        if found is None or isinstance(found, str):
            return found
        posed = question.question
        evidence: list[Evidence] = []
        references = (posed.reference, *question.references)
        for name, answer, reference in zip(RESULTS, found, references, strict=True):
            if answer.shape != (expected := reference.output.shape):
                return f"{name}: returned shape {answer.shape}, expected {expected}"
            if answer.dtype != posed.q.dtype:
                return f"{name}: returned {answer.dtype}, expected {posed.q.dtype}"
            asked = posed if name == RESULTS[0] else question
            weighed = weigh(reference, answer, certain=asked.certain, directions=asked.directions)
            if weighed.fault:
                return f"{name}: {weighed.fault}"
            evidence.append(weighed)
        if posed.name == CLASS_FORM.form.name:
            self.precision = _least_exact(evidence[1:])
        return found


def examine_gradients(
    ask: AskGradients,
    dtype: str,
    *,
    seed: int = 0,
    on_event: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Examined:
    """Put every question about gradients in `dtype` to `ask`, up to the first fault.

    clock : see `attnlab.accuracy.question_budget`. Whatever else `ask` raises comes through.
    """
    session = GradientSession(Asking(ask, on_event, clock), dtype, seed)
    fault = next(filter(None, _faults(session)), None)
    return Examined.of(dtype, fault, session.asking, session.precision)


def _faults(session: GradientSession) -> Iterable[str | None]:
    for question in gradient_questions(session.dtype, session.seed):
        yield session.judge(question)
        if session.asking.declined and not session.asking.asked:
            return  # what has no gradients for the plainest question has none
    yield session.repeat()


def _least_exact(evidence: list[Evidence]) -> Precision:
    """Of the gradient with the loosest class, and the largest share of it."""
    order = list(GRADIENT_CLASSES)
    return Precision.of(max(evidence, key=lambda one: (order.index(one.kind or order[-1]), one.ratio)))


def gradients_asked(gradients: Callable[..., tuple[NDArray[Any], ...]]) -> AskGradients:
    """A plain ``gradients(q, k, v, output_gradient, *, causal, scale)`` on NumPy arrays as a black box.

    It returns the output and the gradients of q, k and v. Arrays as in `attnlab.accuracy.gate.function_asked`.
    """
    witness, library = Witness(np.asarray), NumPy()

    def ask(question: GradientQuestion) -> Gradients:
        posed = question.question
        held = str(posed.q.dtype)
        given = (
            *laid_out(library, (posed.q, posed.k, posed.v), held, posed.layout),
            *laid_out(library, (question.upstream,), held, question.upstream_layout),
        )
        try:
            found = witness.watch(given, lambda: gradients(*given, causal=posed.causal, scale=posed.scale))
        except Misbehaved:
            raise
        except Exception as fault:
            raise Misbehaved(f"raised {type(fault).__name__}: {fault}") from None
        output, query, key, value = (np.array(one) for one in found)
        return output, query, key, value

    return ask
