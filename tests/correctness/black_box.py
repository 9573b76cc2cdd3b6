"""A function from a problem to its answers as the gate's black box: it is asked and watched as a backend is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mutants.parts import Answers, Attention, Remembering

from attnlab.correctness.answering import Witness, laid_out
from attnlab.correctness.questions import Question
from attnlab.errors import Declined, Misbehaved
from attnlab.libraries.library import open_library
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import GRADIENTS, OUTPUT


def asked(attention: Attention | Remembering) -> Callable[[Question], Answers]:
    """An attention is given arrays that lie in memory as the question says. An exception of it is Misbehaved."""
    attend = attention.fresh() if isinstance(attention, Remembering) else attention
    library = open_library("numpy", "cpu")
    witness = Witness(library)

    def watched(problem: Inputs, given: tuple[np.ndarray, ...], around: list[np.ndarray]) -> Answers:
        names = (OUTPUT, *GRADIENTS)[: 4 if len(given) == 4 else 1]
        arrays = dict(zip(("query", "key", "value", "output_gradient"), given, strict=False))
        found: Answers = {}

        def call() -> object:
            found.update(attend(problem.with_(**arrays)))
            results = tuple(found[name] for name in names)
            return results if len(names) > 1 else results[0]

        witness.watch(given, call, names, around)
        return {name: np.array(found[name]) for name in names}

    def ask(question: Question) -> Answers:
        problem = question.inputs
        around: list[Any] = []
        arrays = (problem.query, problem.key, problem.value)
        held = str(problem.query.dtype)
        given = laid_out(library, arrays, held, question.layouts[0], around)
        if problem.output_gradient is not None:
            given += laid_out(library, (problem.output_gradient,), held, question.layouts[1])
        try:
            if question.layouts[0] == "refilled":
                final = given
                rolled = tuple(np.roll(one, 1 + at, axis=2) for at, one in enumerate(arrays))
                given = laid_out(library, rolled, held, question.layouts[0]) + final[3:]
                watched(problem, given, [])
                for array, filling in zip(given, final, strict=True):
                    array[...] = filling
            return watched(problem, given, around)
        except (Declined, Misbehaved):
            raise
        except Exception as fault:
            raise Misbehaved(f"raised {type(fault).__name__}: {fault}") from None

    return ask
