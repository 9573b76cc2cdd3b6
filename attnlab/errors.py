"""Why there is no answer, not the right one, or none on disk. What a caller gave wrongly is a ValueError."""

from __future__ import annotations


class Declined(Exception):
    """The backend does not do this workload; the message is its reason, for a person."""


class Misbehaved(Exception):
    """The backend did what no caller expects; the message says what."""


class NotStored(Exception):
    """What was measured could not be written; the message says why. What was written before stays."""


class Unavailable(Exception):
    """A library, a device or a file is missing here; the message says which and what to do."""


class FieldError(ValueError):
    """A field of a workload has a value that it cannot have: the name of the field, and what is wrong with it."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field} {wrong}")
        self.field, self.wrong = field, wrong
