"""What is told of a candidate: one record, plain data with a JSON schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Status = Literal["judged", "wrong", "caught", "failed", "refused"]


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What is known of one candidate; times in seconds, None for what was not measured.

    status : "judged"; "wrong" (an answer before the clock); "caught" (a timed answer, or a forbidden call); "failed"
    (crash, hang, memory); "refused" (no candidate). budget : the largest share of the error budget that an answer took.
    precision : where it rounds. speedup : over the reference, with the ends of its interval. verdict : "faster",
    "slower", "equivalent" or "undecided". among : candidates that the interval allows for having chosen from.
    measured_again : whether the interval rests on visits after the last selection. output : what the candidate printed,
    its own words, control characters escaped.
    """

    name: str
    digest: str = ""
    status: Status
    reason: str = ""
    correct: bool = False
    reward: float = 0.0
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None
    budget: float | None = None
    precision: str | None = None
    violations: list[str] = []
    questions: int = 0
    seconds: float | None = None
    reference_seconds: float | None = None
    empty_seconds: float | None = None
    setup_seconds: float | None = None
    visits: int = 0
    measured_again: bool = False
    among: int = 1
    reference: str = ""
    workload: dict[str, Any] = {}
    sandbox: bool = True
    output: str = ""


def schema() -> dict[str, Any]:
    """The JSON schema of a record."""
    return msgspec.json.schema(Record)


def escaped(text: str) -> str:
    """A candidate's own words, safe to show anywhere."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text
    )
