"""What the tests of races on fake workers share."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from fake_workers import Clock

from attnlab import system
from attnlab.race import conductor, disturbance
from attnlab.race.disturbance import Others


class Alone:
    """Sees nobody else on the machine."""

    def others(self, ours: Iterable[int]) -> Others:
        return Others(0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The conductor's clock, on a machine that is all its own."""
    one = Clock()
    monkeypatch.setattr(time, "monotonic", one.monotonic)
    monkeypatch.setattr(disturbance, "calibration_seconds", lambda: 0.0005)
    monkeypatch.setattr(disturbance, "steal_seconds", lambda: 0.0)
    monkeypatch.setattr(system, "pressure_seconds", lambda: 0.0)
    monkeypatch.setattr(conductor, "Watch", Alone)
    return one
