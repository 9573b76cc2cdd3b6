"""Every way in which a worker process may fail, in every phase: the outcome is named and the others are measured."""

from __future__ import annotations

from matrix import FAULTS, GOOD, MEASURED, PATIENT, PHASES, contender, expected, race_all

#: every second fault, by turns in all phases, where it ends by itself: what hangs has to be waited for. The benchmarks
#: try all faults in all phases
CASES = {fault: PHASES[at % len(PHASES)] for at, fault in enumerate([*FAULTS][::2])}


def test_every_fault_has_its_outcome_and_harms_nobody() -> None:
    """All of them in one race with two good backends, which have their whole results; no process is left."""
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
