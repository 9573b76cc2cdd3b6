"""Is a backend right? The accuracy gate in every dtype, the backend in a process of its own.

It may crash or hang there: that is an outcome, not the end of the check.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from attnlab.accuracy import gate, gradient_gate
from attnlab.accuracy.cache import forget, forget_all
from attnlab.accuracy.gate_result import Examined
from attnlab.accuracy.gradient_questions import GradientQuestion, gradient_questions
from attnlab.accuracy.questions import Question, questions
from attnlab.contract.discovery import require
from attnlab.contract.errors import Declined
from attnlab.contract.workload import Workload
from attnlab.measuring.contender import Contender
from attnlab.measuring.probe import Misbehaved
from attnlab.measuring.worker_process import Died, Hung, Refused, WorkerProcess

_SECONDS = 60.0
_START_SECONDS = 2.0
#: right answers that may be worked out before their questions: a slow backend is spared many of them
_LEAD = 16
#: the order of asking: what most backends have, and what shows most, first
_DTYPES = ("float32", "float16", "bfloat16", "float64")

Gradients = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
Event = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed, and why not; `passed` is None where it could not be asked at all.

    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (of the class's budget), ``max_ulp`` and ``bias`` (z of the error along the output).
    gradients : the same of its least exact gradient, where it can be differentiated; a kernel that adds up its
    gradients in their dtype has the class "partial sums rounded". no_gradients : why it cannot, where it cannot.
    no_dtypes : the dtypes that it does not have, and why. left_out : questions that would have taken this backend too
    long.
    """

    name: str
    passed: bool | None
    reason: str | None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    precision: dict[str, dict[str, Any]] = field(default_factory=dict)
    gradients: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_gradients: str | None = None
    no_dtypes: dict[str, str] = field(default_factory=dict)

    @property
    def much_left_out(self) -> bool:
        """Whether more than a quarter of the questions that it did not decline were left out as too slow."""
        return 4 * self.left_out > self.asked + self.left_out


def check(
    contender: Contender | str,
    folders: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
    *,
    dtypes: Sequence[str] = _DTYPES,
    on_event: Event = lambda text: None,
    keep: bool = False,
) -> Checked:
    """Put the gate's questions to a backend in each of `dtypes`; stops at the first wrong answer.

    In each dtype first those about its output, then those about the gradients of query, key and value, where its
    library differentiates. `contender` is its name, with settings where they are to hold:
    ``torch_sdpa[threads=1]``. keep : the right answers, some GB, for the next backend of this process.
    Raises ValueError for an unknown backend and for broken notation.
    """
    from threadpoolctl import threadpool_limits

    asked = Contender.parse(contender) if isinstance(contender, str) else contender
    require(asked.backend, folders)
    worker = WorkerProcess(_patient(asked), folders)
    found = _Examination(worker, device, seed, on_event)
    reason: str | None = None
    passed: bool | None = False
    try:
        worker.start()
        with threadpool_limits(1):  # references are small products: a second thread here would only spin
            _begin_ahead(dtypes[0], seed)
            worker.finish_start()
            for dtype in dtypes:
                reason = found.examine(dtype)
                if reason:
                    break
                if not keep:
                    forget()
    except Refused as refusal:  # the backend cannot be had; a fault of its call is Misbehaved
        passed, reason = (None if refusal.kind == "unavailable" else False), str(refusal)
    except (Died, Hung) as fault:
        reason = str(fault)
    else:
        if reason is None:
            passed = True
            if not any(one.asked for one in found.outputs):
                passed, reason = None, found.refusal
    finally:
        worker.end()
        if not keep:
            forget_all()
    return _summary(asked.name, passed, reason, found.outputs, found.gradients)


def _patient(contender: Contender) -> Contender:
    """With threads that wait asleep, as nothing is timed: idle ones would spin on the cores that work out answers."""
    if "OMP_WAIT_POLICY" in {name for name, _ in contender.variables} | set(os.environ):
        return contender
    return replace(contender, variables=(*contender.variables, ("OMP_WAIT_POLICY", "passive")))


def _begin_ahead(dtype: str, seed: int) -> None:
    """The first right answers, for as long as a library takes to load in the other process."""
    until = time.monotonic() + _START_SECONDS
    for question in questions(dtype, seed):
        _work_out(question)
        if time.monotonic() > until:
            return


class _Examination:
    """What the gate has found of a backend so far, one `Examined` a dtype."""

    def __init__(self, worker: WorkerProcess, device: str, seed: int, on_event: Event) -> None:
        self._worker, self._device, self._seed, self._on_event = worker, device, seed, on_event
        self.outputs: list[Examined] = []
        self.gradients: list[Examined] = []

    def examine(self, dtype: str) -> str | None:
        """Its output in `dtype`, then its gradients; the first fault is returned."""
        asked = _Asked(self._worker, self._device, questions(dtype, self._seed))
        self.outputs.append(gate.examine(asked.output, dtype, **self._options(asked)))
        if self.outputs[-1].fault or not self.outputs[-1].asked:
            return self.outputs[-1].fault
        asked = _Asked(self._worker, self._device, gradient_questions(dtype, self._seed))
        self.gradients.append(gradient_gate.examine_gradients(asked.gradients, dtype, **self._options(asked)))
        return self.gradients[-1].fault

    @property
    def refusal(self) -> str:
        """That nothing was answered, and each reason for it once."""
        reasons = dict.fromkeys(one.refusal for one in self.outputs if one.refusal)
        return ": ".join(filter(None, ("it declines every workload that was asked", "; ".join(reasons))))

    def _options(self, asked: _Asked) -> dict[str, Any]:
        def told(text: str) -> None:
            self._on_event(f"{self._worker.contender.name}: {text}")

        return {"seed": self._seed, "on_event": told, "clock": asked.clock}


class _Asked:
    """A backend in its own process as a black box. Died and Hung come through, with the question's name.

    The right answer is worked out here while the backend works on its own, and if it takes longer those to the next
    questions of `coming`, which are in the order of asking; some of them may not be asked.
    """

    def __init__(
        self, worker: WorkerProcess, device: str, coming: Iterator[Question | GradientQuestion]
    ) -> None:
        self._worker, self._device, self._coming = worker, device, coming
        self._ready: deque[Question | GradientQuestion] = deque()
        self._declining = False
        self._taken = 0.0

    def clock(self) -> float:
        """Processor seconds that the backend took so far: a busy machine does not make it slow."""
        return self._taken

    def output(self, question: Question) -> NDArray[Any]:
        """The output."""
        (output,) = self._put(question, question, "attend")
        return output

    def gradients(self, question: GradientQuestion) -> Gradients:
        """The output and the gradients of query, key and value."""
        output, query, key, value = self._put(
            question.question,
            question,
            "gradients",
            question.upstream,
            gradient_layout=question.upstream_layout,
        )
        return output, query, key, value

    def _put(
        self,
        question: Question,
        whole: Question | GradientQuestion,
        op: str,
        *more: NDArray[Any],
        **options: Any,
    ) -> tuple[NDArray[Any], ...]:
        """What the worker answers to `op` on the question's arrays and `more`; `whole` is what is asked of them."""
        self._pass_to(whole)
        workload = Workload.of_arrays(
            question.q,
            question.k,
            question.v,
            causal=question.causal,
            scale=question.scale,
            dtype=question.dtype,
            device=self._device,
        )
        arrays = (question.q, question.k, question.v, *more)
        options = {"workload": workload.to_dict(), "layout": question.layout, **options}
        try:
            answer = self._worker.begin(op, seconds=_SECONDS, arrays=arrays, **options)
            if not self._declining:
                _work_out(whole)
                self._work_ahead()
            reply, found = answer()
            self._taken += reply["cpu_seconds"]
            self._declining = False
        except Refused as refusal:
            if refusal.kind == "declined":
                self._declining = True  # likely the next one too: nothing is worked out for it
                raise Declined(str(refusal)) from None
            if refusal.kind == "unavailable":
                raise
            raise Misbehaved(str(refusal)) from None
        except Died as death:
            raise Died(f"{whole.text}: {death}") from None
        except Hung as hang:
            raise Hung(f"{whole.text}: {hang}") from None
        return found

    def _pass_to(self, question: Question | GradientQuestion) -> None:
        """Leave behind what comes before it: it was passed over. What is asked at the end comes after all."""
        while self._ready:
            if self._ready.popleft() is question:
                return
        for one in self._coming:
            if one is question:
                return

    def _work_ahead(self) -> None:
        """Right answers to the next questions, until this one's answer is there."""
        while len(self._ready) < _LEAD and not self._worker.answered():
            following = next(self._coming, None)
            if following is None:
                return
            _work_out(following)
            self._ready.append(following)


def _work_out(question: Question | GradientQuestion) -> None:
    """Its right answers, which are kept with it."""
    if isinstance(question, GradientQuestion):
        _ = question.question.reference, question.references
    else:
        _ = question.reference


def _summary(
    name: str,
    passed: bool | None,
    reason: str | None,
    outputs: Sequence[Examined],
    gradients: Sequence[Examined],
) -> Checked:
    answered = [one for one in gradients if one.asked]
    both = [*outputs, *answered]
    refused = next((one.refusal for one in gradients if one.refusal), None)
    return Checked(
        name=name,
        passed=passed,
        reason=reason,
        asked=sum(one.asked for one in both),
        declined=sum(one.declined for one in both),
        left_out=sum(one.left_out for one in both),
        precision=_precision(outputs),
        gradients=_precision(gradients),
        no_gradients=None if answered else refused,
        no_dtypes={one.dtype: one.refusal for one in outputs if one.refusal},
    )


def _precision(found: Sequence[Examined]) -> dict[str, dict[str, Any]]:
    shown = {one.dtype: asdict(one.precision) for one in found if one.precision}
    return {dtype: {"class": one.pop("kind"), **one} for dtype, one in shown.items()}
