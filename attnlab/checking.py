"""Is a backend right? The accuracy gate over shapes, masks and input regimes, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnlab.discovery import require
from attnlab.ground.workload import Workload
from attnlab.judging import accuracy
from attnlab.measuring.contender import Contender
from attnlab.measuring.seat import Died, Hung, Refused, Seat

_SECONDS = 60.0
_SMALL = Workload(batch=2, heads=2, queries=48, keys=48, head_dim=32)
#: what every backend is asked; what it declines is not held against it
QUESTIONS: tuple[Workload, ...] = tuple(
    _SMALL.with_(dtype=dtype, scale=None, **change)
    for dtype in ("float32", "float64", "float16", "bfloat16")
    for change in (
        {},
        {"causal": True},
        {"queries": 17, "keys": 33, "seed": 1},
        {"queries": 33, "keys": 17, "causal": True, "seed": 2},
        {"value_dim": 24, "seed": 3},
        {"regime": "logit_std_8", "seed": 4},
        {"regime": "shifted_means", "seed": 5},
        {"regime": "outliers", "seed": 6},
    )
)


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed, and why not; `passed` is None where it could not be asked at all."""

    name: str
    passed: bool | None
    reason: str | None
    asked: int = 0
    declined: int = 0


def check(
    name: str,
    *,
    folders: Sequence[str] = (),
    device: str = "cpu",
    on_event: Callable[[str], None] = lambda text: None,
) -> Checked:
    """Put every question to the backend `name`; stops at the first wrong answer.

    Raises ValueError for an unknown backend.
    """
    require(name, folders)
    seat = Seat(Contender.parse(name), folders)
    asked = declined = 0
    try:
        seat.start()
        seat.finish_start()
        for question in QUESTIONS:
            workload = question.with_(device=device)
            on_event(f"{name}: {workload.label}")
            try:
                seat.ask("prepare", seconds=_SECONDS, workload=workload.to_dict())
            except Refused as refusal:
                if refusal.kind != "declined":
                    raise
                declined += 1
                continue
            rows = list(range(workload.queries))
            _, (output,) = seat.ask_arrays("output", seconds=_SECONDS, rows=rows)
            found = accuracy.judge(workload, rows, output)
            asked += 1
            if not found.passed:
                return Checked(name, False, f"{workload.label}: {found.reason}", asked, declined)
    except Refused as refusal:
        absent = refusal.kind == "unavailable"
        return Checked(name, None if absent else False, str(refusal), asked, declined)
    except (Died, Hung) as fault:
        return Checked(name, False, str(fault), asked, declined)
    finally:
        seat.leave()
    if not asked:
        return Checked(name, None, "it declines every workload that was asked", asked, declined)
    return Checked(name, True, None, asked, declined)
