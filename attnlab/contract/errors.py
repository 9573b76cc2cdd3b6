"""The two ways in which a backend honestly cannot answer. What is malformed is a ValueError."""

from __future__ import annotations


class Declined(Exception):
    """The backend does not do this workload; the message is its reason, for a person."""


class Unavailable(Exception):
    """A library, a device or a file is missing here; the message says which and what to do."""
