"""Every way in which a worker process may fail, in every phase: the outcome is named and the others are measured."""

from __future__ import annotations

import pytest
from matrix import FAULTS, GOOD, MEASURED, PATIENT, PHASES, QUICK, contender, expected, race_all

#: a fault in one phase, by turns in all of them, is asked in every run of the tests where it ends by itself: what hangs
#: has to be waited for, and all faults in all phases take minutes
ENDING = {fault: PHASES[at % len(PHASES)] for at, fault in enumerate(FAULTS, 2)}
HANGING = [fault for fault, phase in ENDING.items() if "no answer" in expected(fault, phase)[1]]
CASES = {
    "by turns": ({fault: phase for fault, phase in ENDING.items() if fault not in HANGING}, PATIENT),
    **{phase: (dict.fromkeys(FAULTS, phase), QUICK) for phase in PHASES},
}


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=pytest.mark.thorough if one in PHASES else ()) for one in CASES]
)
def test_every_fault_has_its_outcome_and_harms_nobody(case: str) -> None:
    """All of them in one race with two good backends, which have their whole results; no process is left."""
    phases, limits = CASES[case]
    trial = race_all(phases, limits)
    told = {}
    for fault, phase in phases.items():
        result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
        reason = result.reason or ""
        if result.outcome != outcome or words not in reason or "\n" in reason or len(reason) >= 500:
            told[fault] = f"{phase}: {result.outcome}: {reason}"
    assert not told
    for name in GOOD:
        result = trial.results[name]
        assert result.outcome is MEASURED and result.latency and result.peak_bytes, result
    assert trial.left == 0
