"""Every way in which a worker process may fail, in every phase: the outcome is named and the others are measured."""

from __future__ import annotations

import pytest
from matrix import (
    BACKENDS,
    DEADLINE,
    FAULTS,
    GOOD,
    MEASURED,
    PHASES,
    QUICK,
    contender,
    expected,
    race,
    race_all,
)

from attnlab.backends.contender import parse_all
from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor

#: every fault in one phase, by turns in all of them, is asked in every run of the tests; all of all takes minutes
BRIEF = "by turns"
CASES = {
    BRIEF: {fault: PHASES[at % len(PHASES)] for at, fault in enumerate(FAULTS, 2)},
    **{phase: dict.fromkeys(FAULTS, phase) for phase in PHASES},
}


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=() if one == BRIEF else pytest.mark.thorough) for one in CASES]
)
def test_every_fault_has_its_outcome_and_harms_nobody(case: str) -> None:
    """All of them in one race with two good backends, which have their whole results; no process is left."""
    phases = CASES[case]
    trial = race_all(phases)
    told = {}
    for fault, phase in phases.items():
        result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
        reason = result.reason or ""
        if (result.outcome, words in reason, "\n" in reason, len(reason) < 500) != (
            outcome,
            True,
            False,
            True,
        ):
            told[fault] = f"{result.outcome}: {reason}"
    assert not told
    for name in GOOD:
        result = trial.results[name]
        assert result.outcome is MEASURED and result.latency and result.peak_bytes
        assert len(set(result.latency.processes.values())) == QUICK.processes
    assert trial.left == 0
    hanging = sum(expected(*one)[0] == "timed_out" for one in phases.items())
    # each that hangs takes its deadline, at most twice; the rest is starts and rounds
    assert trial.seconds < 2 * DEADLINE * (hanging + 1) + 90


def test_the_end_of_what_it_printed_is_kept() -> None:
    """In safe lines, with the result of the one that died."""
    trial = race("check", ["segfault", "flood_stderr"])
    assert trial.results[contender("segfault", "check")].tail == "faulty was here"


def test_who_hangs_again_and_again_is_not_waited_for_again() -> None:
    """After two workloads without an answer a third that is no smaller costs no deadline; a smaller one is tried."""
    hanging = contender("hang", "check")
    sizes = (8, 12, 16, 4)
    with Conductor(parse_all([GOOD[0], hanging]), folders=[str(BACKENDS)], limits=QUICK) as conductor:
        found = [
            {one.contender: one for one in conductor.race(Workload(heads=1, queries=size, keys=size))}
            for size in sizes
        ]
    reasons = [one[hanging].reason or "" for one in found]
    assert {one[hanging].outcome for one in found} == {Outcome.TIMED_OUT}
    assert ["not tried" in reason for reason in reasons] == [False, False, True, False]
    assert all(one[GOOD[0]].outcome is MEASURED for one in found)
