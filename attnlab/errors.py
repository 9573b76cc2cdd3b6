"""The exceptions: no answer, a wrong answer, or results not stored. A caller's mistake is a ValueError."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why a backend does not compute a workload.

    field : what is not supported: a field of the workload, a keyword of `attend`, "library", or "" if it is unknown.
    reason : a short sentence for a person, without the name of the backend.
    """

    field: str
    reason: str


class Declined(Exception):
    """A backend does not compute this workload; `refusal` says why. `asked` precedes the reason in the message."""

    def __init__(self, refusal: Refusal | str, asked: str = "") -> None:
        self.refusal = Refusal("", refusal) if isinstance(refusal, str) else refusal
        super().__init__(f"{asked}: {self.refusal.reason}" if asked else self.refusal.reason)


class Misbehaved(Exception):
    """The backend did something wrong; the message says what."""


class NotStored(Exception):
    """Results could not be written; the message says why. What was written before is kept."""


class Unavailable(Exception):
    """A library, a device or a file is missing here; the message says which and what to do."""


class FieldError(ValueError):
    """A field of a workload has an impossible value: the name of the field, and what is wrong."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field} {wrong}")
        self.field, self.wrong = field, wrong
