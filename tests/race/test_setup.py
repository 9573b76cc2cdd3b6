"""Set-up: what a process takes before its calls are as fast as they become, and when that pays off."""

from __future__ import annotations

import pytest
from fake_workers import Clock, FakeWorker, race


def test_every_process_has_a_sample_binding_and_what_the_first_call_took_more() -> None:
    clock = Clock()
    first = {"binding": lambda process: 0.5 + process, "first_call": lambda process: 0.012}
    plain = FakeWorker("plain", clock, 0.002, first_call=lambda process: 0.001)
    (costly, other), _ = race([FakeWorker("costly", clock, 0.002, **first), plain])
    found = costly.measurement("setup")
    assert found is not None and found.unit == "s"
    assert found.columns["process"] == (0, 1, 2, 3, 4) and found.columns["fresh"] == (0, 1, 1, 1, 1)
    assert found.samples == pytest.approx([0.51, 1.51, 2.51, 3.51, 4.51])
    # the first process had made predictions before
    assert costly.setup_seconds == pytest.approx(3.01)
    assert other.setup_seconds == 0.0, "a first call that is no longer than the others costs nothing"
