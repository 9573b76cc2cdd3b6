"""What the tests of races on fake workers share."""

from __future__ import annotations

import time

import pytest
from fake_workers import Clock

from attnlab.measuring import race


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The conductor's clock, and a calibration loop that is never disturbed."""
    one = Clock()
    monkeypatch.setattr(time, "monotonic", one.monotonic)
    monkeypatch.setattr(race, "calibration_seconds", lambda: 0.0005)
    monkeypatch.setattr(race, "steal_seconds", lambda: 0.0)
    return one
