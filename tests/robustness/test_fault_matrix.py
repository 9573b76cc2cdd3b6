"""Faults of worker processes, in all phases: the outcome is named, and the other contenders are measured."""

from __future__ import annotations

from matrix import FAULTS, GOOD, MEASURED, PATIENT, PHASES, contender, expected, race_all

#: every second fault, with the phases in turn. Faults that hang are left out below: each takes a whole deadline. The
#: benchmarks try all faults in all phases
CASES = {fault: PHASES[at % len(PHASES)] for at, fault in enumerate([*FAULTS][::2])}


def test_every_fault_has_its_outcome_and_harms_nobody() -> None:
    """All faults are in one race with two good backends, whose results are complete. No process is left."""
    phases = {fault: phase for fault, phase in CASES.items() if "no answer" not in expected(fault, phase)[1]}
    trial = race_all(phases, PATIENT)
    told = {}
    for fault, phase in phases.items():
        result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
        reason = result.reason or ""
        if result.outcome != outcome or words not in reason or "\n" in reason or len(reason) >= 500:
            told[fault] = f"{phase}: {result.outcome}: {reason}"
    assert not told and len(phases) > len(PHASES)
    for name in GOOD:
        result = trial.results[name]
        assert result.outcome is MEASURED and result.latency and result.peak_bytes, result
    assert trial.left == 0
