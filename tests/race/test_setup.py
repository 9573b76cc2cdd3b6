"""Set-up: what a process takes before its calls are as fast as they become, and when that pays off."""

from __future__ import annotations

import math

from fake_workers import Clock, FakeWorker, race

from attnlab.problem.result import Result


def of(results: list[Result], name: str) -> Result:
    return next(one for one in results if one.contender == name)


def test_every_process_has_a_sample_binding_and_what_the_first_call_took_more() -> None:
    clock = Clock()
    costly = FakeWorker(
        "costly",
        clock,
        0.002,
        binding=lambda process: 0.5 + process,
        first_call=lambda process: 0.012,
    )
    results, _ = race([costly, FakeWorker("plain", clock, 0.002, first_call=lambda process: 0.001)])
    found = of(results, "costly").measurement("setup")
    assert found is not None and found.unit == "s"
    assert found.columns["process"] == (0, 1, 2, 3, 4)
    assert found.columns["fresh"] == (0, 1, 1, 1, 1)
    for process, sample in enumerate(found.samples):
        assert math.isclose(sample, 0.5 + process + 0.010)
    # the first process had made predictions before
    assert math.isclose(of(results, "costly").setup_seconds or 0, 3.0 + 0.010)
    plain = of(results, "plain")
    assert plain.setup_seconds == 0.0, "a first call that is no longer than the others costs nothing"
