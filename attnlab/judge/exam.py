"""Is a candidate right? Asked before it is timed: at its own shape, at shapes beside it, and the daily questions.

The daily questions are those of `attnlab check`. A candidate may decline what it does not do; what it answers is right
or it is out. The seed is drawn by the judge.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness import weighing
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.questions import FORWARD, Question
from attnlab.errors import Declined, Misbehaved
from attnlab.judge.inside import Order
from attnlab.judge.problems import NORMAL
from attnlab.judge.record import Caught, Seat
from attnlab.judge.visits import Visits
from attnlab.processes import Failed
from attnlab.workload.drawing import inputs_of
from attnlab.workload.inputs import Inputs, pack
from attnlab.workload.number_formats import FORMATS, carrier
from attnlab.workload.workload import OUTPUT, Workload

#: query rows of another shape that are looked at
_ROWS = 12


class Exam:
    """The same questions for every candidate of one judge."""

    def __init__(self, visits: Visits) -> None:
        self._visits, self._seed = visits, secrets.randbits(31)

    def take(self, seat: Seat) -> int:
        """How many questions were answered. Raises Caught for a wrong answer, and Failed."""
        for kind in (NORMAL, *self._visits.problem.odd):  # here nothing can be declined
            self._visits.turn(seat, [kind, NORMAL])
        self._visits.turn(seat, [NORMAL], strict=True)
        workload = self._visits.problem.loading.workload
        if workload is None or self._visits.problem.fixed:
            return 0
        asked = sum(self._beside(seat, other) for other in beside(workload))
        dtype = workload.dtype

        def ask(question: Question) -> Answers:
            # PyTorch's own kernels answer NaN to a negative scale, which nobody asks for
            if question.dtype != dtype or question.inputs.scale <= 0:
                raise Declined("it is not judged here")
            return {OUTPUT: self._answer(seat, question.workload, question.inputs)}

        found = examine(ask, dtype, seed=self._seed, kinds=(FORWARD,), daily=True)
        if found.fault:
            raise Caught(found.fault)
        return asked + found.asked

    def _beside(self, seat: Seat, workload: Workload) -> bool:
        inputs = inputs_of(workload.with_(seed=secrets.randbits(31)))
        rows = weighing.sampled_rows(workload, np.random.default_rng(), _ROWS)
        try:
            answer = self._answer(seat, workload, inputs)
        except Declined:
            return False
        except Misbehaved as fault:
            raise Caught(f"{workload.label}: {fault}") from None
        judged = weighing.judge(workload, inputs, rows, {OUTPUT: answer}, None)
        if not judged.passed:
            raise Caught(f"{workload.label}: {judged.reason}")
        return True

    def _answer(self, seat: Seat, workload: Workload, inputs: Inputs) -> NDArray[np.floating]:
        """Raises Declined, Misbehaved for what ends with the question, and Failed for what ends the candidate."""
        box, places = seat.sandbox, []
        box.clear()
        plain, arrays = pack(inputs)
        for array in arrays:
            view, place = box.lay(array.dtype.str, array.shape)
            view[...] = array
            places.append(place)
        form = FORMATS[workload.dtype]
        output, at = box.lay(f"<i{form.itemsize}", workload.shape_of(OUTPUT))
        try:
            box.ask(
                Order("ask", places=[*places, at], workload=workload, plain=plain), self._visits.load_seconds
            )
        except Failed as fault:
            if fault.kind == "declined":
                raise Declined(str(fault)) from None
            if fault.kind in ("wrong", "raised", "memory") and box.alive:
                raise Misbehaved(str(fault)) from None
            raise
        return output.view(form).astype(carrier(workload.dtype))


def beside(workload: Workload) -> Iterator[Workload]:
    """The asked shape but for one thing: one key or query less, another length, one batch element more."""
    n, m, batch = workload.queries, workload.keys, workload.batch
    square = n == m
    for queries, keys, count in (
        (n - 1, m - 1, batch),
        (n // 2 + 3, m // 2 + 3, batch),
        (n, m, batch + 1),
    ):
        with contextlib.suppress(ValueError):  # its mask has no such shape
            yield workload.with_(queries=max(1, queries if square else n), keys=max(1, keys), batch=count)
