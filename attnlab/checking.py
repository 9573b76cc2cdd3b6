"""Is a backend right? The accuracy gate in every dtype, the backend in a process of its own.

It may crash or hang there: that is an outcome, not the end of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from numpy.typing import NDArray

from attnlab.discovery import require
from attnlab.ground.errors import Declined
from attnlab.ground.workload import Workload
from attnlab.judging import gate, gradient_gate
from attnlab.judging.examined import Examined
from attnlab.judging.gradient_questions import GradientQuestion
from attnlab.judging.posing import Gradients, Misbehaved
from attnlab.judging.questions import Question
from attnlab.measuring.contender import Contender
from attnlab.measuring.seat import Died, Hung, Refused, Seat

_SECONDS = 60.0
#: the order of asking: what most backends have, and what shows most, first
_DTYPES = ("float32", "float16", "bfloat16", "float64")

Event = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed, and why not; `passed` is None where it could not be asked at all.

    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (of the class's budget), ``max_ulp`` and ``bias`` (z of the error along the output).
    gradients : the same of its least exact gradient, where it can be differentiated; a kernel that adds up its
    gradients in their dtype has the class "partial sums rounded". no_gradients : why it cannot, where it cannot.
    left_out : questions that would have taken this backend too long.
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
) -> Checked:
    """Put the gate's questions to a backend in each of `dtypes`; stops at the first wrong answer.

    First those about its output, in all dtypes, then those about the gradients of query, key and value, where
    its library differentiates. `contender` is its name, with settings where they are to hold:
    ``torch_sdpa[threads=1]``. Raises ValueError for an unknown backend and for broken notation.
    """
    from threadpoolctl import threadpool_limits

    asked = Contender.parse(contender) if isinstance(contender, str) else contender
    require(asked.backend, folders)
    seat = Seat(asked, folders)
    outputs: list[Examined] = []
    gradients: list[Examined] = []
    reason: str | None = None
    passed: bool | None = False
    try:
        seat.start()
        seat.finish_start()
        with threadpool_limits(1):  # references are small products: a second thread here would only spin
            reason = _examine_all(seat, device, dtypes, seed, outputs, gradients, on_event)
    except Refused as refusal:  # the backend cannot be had; a fault of its call is Misbehaved
        passed, reason = (None if refusal.kind == "unavailable" else False), str(refusal)
    except (Died, Hung) as fault:
        reason = str(fault)
    else:
        if reason is None:
            passed = True
            if not any(one.asked for one in outputs):
                passed, reason = None, "it declines every workload that was asked"
    finally:
        seat.leave()
    return _summary(asked.name, passed, reason, outputs, gradients)


def _examine_all(
    seat: Seat,
    device: str,
    dtypes: Sequence[str],
    seed: int,
    outputs: list[Examined],
    gradients: list[Examined],
    on_event: Event,
) -> str | None:
    """Fill `outputs` and `gradients`, one a dtype, up to the first fault, which is returned."""

    def told(text: str) -> None:
        on_event(f"{seat.contender.name}: {text}")

    for dtype in dtypes:
        outputs.append(gate.examine(_outputs_of(seat, device), dtype, seed=seed, on_event=told))
        if outputs[-1].fault:
            return outputs[-1].fault
    for one in outputs:
        if not one.asked:
            continue
        ask = _gradients_of(seat, device)
        gradients.append(gradient_gate.examine_gradients(ask, one.dtype, seed=seed, on_event=told))
        if gradients[-1].fault:
            return gradients[-1].fault
    return None


def _outputs_of(seat: Seat, device: str) -> gate.Ask:
    """A backend in its own process as a black box. Died and Hung come through, with the question's name."""

    def ask(question: Question) -> NDArray[Any]:
        (output,) = _put(seat, device, question, question.text, "attend")
        return output

    return ask


def _gradients_of(seat: Seat, device: str) -> gradient_gate.AskGradients:
    """The same for gradients."""

    def ask(question: GradientQuestion) -> Gradients:
        output, query, key, value = _put(
            seat,
            device,
            question.question,
            question.text,
            "gradients",
            question.upstream,
            gradient_layout=question.upstream_layout,
        )
        return output, query, key, value

    return ask


def _put(
    seat: Seat, device: str, question: Question, text: str, op: str, *more: NDArray[Any], **options: Any
) -> tuple[NDArray[Any], ...]:
    """What the worker answers to `op` on the question's arrays and `more`. `text` names it where it fails."""
    workload = Workload.of_arrays(
        question.q,
        question.k,
        question.v,
        causal=question.causal,
        scale=question.scale,
        dtype=question.dtype,
        device=device,
    )
    arrays = (question.q, question.k, question.v, *more)
    options = {"workload": workload.to_dict(), "layout": question.layout, **options}
    try:
        return seat.ask_arrays(op, seconds=_SECONDS, arrays=arrays, **options)[1]
    except Refused as refusal:
        if refusal.kind == "declined":
            raise Declined(str(refusal)) from None
        if refusal.kind == "unavailable":
            raise
        raise Misbehaved(str(refusal)) from None
    except Died as death:
        raise Died(f"{text}: {death}") from None
    except Hung as hang:
        raise Hung(f"{text}: {hang}") from None


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
    )


def _precision(found: Sequence[Examined]) -> dict[str, dict[str, Any]]:
    shown = {one.dtype: asdict(one.precision) for one in found if one.precision}
    return {dtype: {"class": one.pop("kind"), **one} for dtype, one in shown.items()}
