"""An attention function as a black box for the check: it is called and watched in the same way as a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mutants.parts import Answers, Attention, Remembering

from attnlab.correctness.answering import Witness
from attnlab.correctness.questions import Question
from attnlab.errors import Declined, Misbehaved
from attnlab.libraries.library import open_library
from attnlab.workload.number_formats import carrier
from attnlab.workload.workload import GRADIENTS, OUTPUT


def asked(attention: Attention | Remembering) -> Callable[[Question], Answers]:
    """Answer questions by `attention`, on arrays in the question's memory layout. Its exceptions become Misbehaved."""
    attend = attention.fresh() if isinstance(attention, Remembering) else attention
    witness = Witness(open_library("numpy", "cpu"))

    def ask(question: Question) -> Answers:
        posed, workload = question.inputs, question.workload
        names = (OUTPUT,) if posed.output_gradient is None else (OUTPUT, *GRADIENTS)

        def made(given: tuple[Any, ...], *upstream: Any) -> Callable[[], Any]:
            arrays = zip(("query", "key", "value", "output_gradient"), (*given, *upstream), strict=False)
            changed = posed.with_(**dict(arrays))

            def call() -> Any:
                found = attend(changed)
                results = tuple(found[name] for name in names)
                return results if len(names) > 1 else results[0]

            return call

        try:
            found = witness.asked(posed, str(posed.query.dtype), names, made, *question.layouts)
            found = dict(zip(names, found if len(names) > 1 else (found,), strict=True))
            for name, one in found.items():
                if (one.shape, one.dtype) != (workload.shape_of(name), carrier(workload.dtype_of(name))):
                    raise Misbehaved(f"returned {one.dtype} of shape {one.shape} as {name}")
            return {name: np.array(one) for name, one in found.items()}
        except (Declined, Misbehaved):
            raise
        except Exception as fault:
            raise Misbehaved(f"raised {type(fault).__name__}: {fault}") from None

    return ask
