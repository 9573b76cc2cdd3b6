"""What a backend may do instead of answering: two honest ways, and one that is a fault. What is malformed is a ValueError."""

from __future__ import annotations


class Declined(Exception):
    """The backend does not do this workload; the message is its reason, for a person."""


class Unavailable(Exception):
    """A library, a device or a file is missing here; the message says which and what to do."""


class Misbehaved(Exception):
    """The backend did what no caller expects; the message says what."""
