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
from attnlab.judging import gate
from attnlab.judging.posing import Misbehaved
from attnlab.judging.questions import Question
from attnlab.measuring.contender import Contender
from attnlab.measuring.seat import Died, Hung, Refused, Seat

_SECONDS = 60.0
#: the order of asking: what most backends have, and what shows most, first
_DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed, and why not; `passed` is None where it could not be asked at all.

    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (of the class's budget), ``max_ulp`` and ``bias`` (z of the error along the output).
    left_out : questions that would have taken this backend too long.
    """

    name: str
    passed: bool | None
    reason: str | None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    precision: dict[str, dict[str, Any]] = field(default_factory=dict)


def check(
    name: str,
    folders: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
    *,
    dtypes: Sequence[str] = _DTYPES,
    on_event: Callable[[str], None] = lambda text: None,
) -> Checked:
    """Put the gate's questions to the backend `name` in each of `dtypes`; stops at the first wrong answer.

    Raises ValueError for an unknown backend.
    """
    from threadpoolctl import threadpool_limits

    require(name, folders)
    seat = Seat(Contender.parse(name), folders)
    found: list[gate.Examined] = []
    try:
        seat.start()
        seat.finish_start()
        with threadpool_limits(1):  # references are small products: a second thread here would only spin
            for dtype in dtypes:
                found.append(
                    gate.examine(
                        seat_asked(seat, device),
                        dtype,
                        seed=seed,
                        on_event=lambda text: on_event(f"{name}: {text}"),
                    )
                )
                if found[-1].fault:
                    break
    except Refused as refusal:  # the backend cannot be had; a fault of its call is Misbehaved
        return _summary(name, found, None if refusal.kind == "unavailable" else False, str(refusal))
    except (Died, Hung) as fault:
        return _summary(name, found, False, str(fault))
    finally:
        seat.leave()
    wrong = next((one.fault for one in found if one.fault), None)
    if wrong:
        return _summary(name, found, False, wrong)
    if not any(one.asked for one in found):
        return _summary(name, found, None, "it declines every workload that was asked")
    return _summary(name, found, True, None)


def seat_asked(seat: Seat, device: str) -> gate.Ask:
    """A backend in its own process as a black box. Died and Hung come through, with the question's name."""

    def ask(question: Question) -> NDArray[Any]:
        workload = Workload.of_arrays(
            question.q,
            question.k,
            question.v,
            causal=question.causal,
            scale=question.scale,
            dtype=question.dtype,
            device=device,
        )
        arrays = (question.q, question.k, question.v)
        try:
            _, (output,) = seat.ask_arrays(
                "attend", seconds=_SECONDS, arrays=arrays, workload=workload.to_dict(), layout=question.layout
            )
        except Refused as refusal:
            if refusal.kind == "declined":
                raise Declined(str(refusal)) from None
            if refusal.kind == "unavailable":
                raise
            raise Misbehaved(str(refusal)) from None
        except Died as death:
            raise Died(f"{question.text}: {death}") from None
        except Hung as hang:
            raise Hung(f"{question.text}: {hang}") from None
        return output

    return ask


def _summary(name: str, found: Sequence[gate.Examined], passed: bool | None, reason: str | None) -> Checked:
    precision = {}
    for one in found:
        if one.precision:
            shown = asdict(one.precision)
            precision[one.dtype] = {"class": shown.pop("kind"), **shown}
    return Checked(
        name=name,
        passed=passed,
        reason=reason,
        asked=sum(one.asked for one in found),
        declined=sum(one.declined for one in found),
        left_out=sum(one.left_out for one in found),
        precision=precision,
    )
