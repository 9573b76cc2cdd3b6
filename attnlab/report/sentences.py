"""The verdict of a run in sentences, and the warnings that come before it."""

from __future__ import annotations

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.avoid import avoid
from attnlab.report.crossings import crossings
from attnlab.report.evidence import Evidence
from attnlab.report.winners import winners

#: a contender that differs from itself by more than this was not measured in peace
BUSY = 0.10


def warnings(evidence: Evidence) -> list[str]:
    """What a reader must know before believing anything: an interrupted run, a failed self-test."""
    found = []
    run = evidence.run
    if not run.complete:
        answered = sum(1 for cell in evidence.cells if cell.answers)
        found.append(
            f"This run was interrupted: {answered} of {wording.counted(len(run.plan.workloads), 'workload')} "
            "were answered. What follows holds for those alone."
        )
    tested = evidence.self_test
    if tested.failures:
        resolution = units.percent(tested.resolution)
        found.append(
            f"The self-test failed on {len(tested.failures)} of {wording.counted(len(tested.twins), 'workload')}: "
            f"one contender, entered twice, differed from itself. **Differences smaller than {resolution} are not "
            "to be believed on this machine**; the verdicts below call them ties."
            + (
                " It was too busy to measure on: repeat the run when it is idle."
                if tested.resolution > BUSY
                else ""
            )
        )
    refused = sum(len(cell.faults) for cell in evidence.cells)
    if refused:
        found.append(
            f"{wording.counted(refused, 'measurement')} came out above the measured ceiling of this machine. They are "
            "failed measurements, of the speed or of the ceiling, and are left out."
        )
    return found


def verdict(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """(heading, sentences) for each family of workloads; the heading is empty where there is one family."""
    if not evidence.anything_measured:
        return [("", ["Nothing was measured; the table of those left out says why."])]
    chapters = []
    for family in evidence.families:
        sentences = winners(evidence, family) + crossings(evidence, family) + avoid(evidence, family)
        heading = family.title if len(evidence.families) > 1 else ""
        chapters.append((heading, sentences or ["Nothing was measured here."]))
    return chapters


def footnote(evidence: Evidence) -> str:
    """What the intervals and the ties above mean."""
    margin = units.percent(evidence.margin)
    return (
        "Intervals, in square brackets, are 95 % over the comparisons of one workload. "
        f"Contenders within ±{margin} of each other count as equivalent."
    )


def self_test_summary(evidence: Evidence) -> str:
    """The self-test in a sentence or two, and how many rounds were left out."""
    tested = evidence.self_test
    left_out = sum(cell.ranking.disturbed for cell in evidence.cells if cell.ranking is not None)
    kept = sum(cell.ranking.rounds for cell in evidence.cells if cell.ranking is not None)
    rounds = (
        f"{left_out} of {wording.counted(left_out + kept, 'round')} were left out whole, for every contender alike, "
        "because a fixed calibration loop took more than 10 % longer or shorter in them than usual."
    )
    if not tested.twins:
        return f"No contender was entered twice, so there is no self-test. {rounds}"
    worst = max(tested.twins, key=lambda one: one.deviation)
    name = f"`{worst.contender}`"
    outside = len(tested.failures)
    if outside:
        text = (
            f"{name} raced against itself and differed by more than ±{units.percent(tested.margin)}, with its whole "
            f"interval, on {outside} of {wording.counted(len(tested.twins), 'workload')}"
        )
    else:
        text = (
            f"{name} raced against itself and on none of {wording.counted(len(tested.twins), 'workload')} lay its "
            f"whole interval outside ±{units.percent(tested.margin)}"
        )
    return f"{text}; the largest difference was {units.percent(worst.deviation)}. {rounds}"


def growth(evidence: Evidence) -> str:
    """How the growth table was made, and what it says at the longest lengths."""
    return (
        "t = a + b n + c n² was fitted with non-negative coefficients to the medians, residuals relative to t. "
        "Intervals hold the noise of the rounds only. The last column names the term that leads at the longest "
        "length; where the fit misses a time by more than 10 % it names none."
    )


def reading(evidence: Evidence) -> list[str]:
    """How to read the report, in a few lines."""
    margin = units.percent(evidence.margin)
    return [
        "Every contender ran in a process of its own, and all but the one on the clock were stopped. Rounds were "
        "interleaved; ratios are medians over rounds of pairs measured within moments of each other.",
        "First is a set: the contender with the least median, and all that are not decidedly slower. The chance that "
        "the truly fastest is not among those named first is at most 5 % for each workload.",
        f'"Slower" and "faster" mean that the whole interval lies beyond ±{margin}; "equivalent", that it lies '
        "within; anything else is not told apart, which is not the same as equal.",
        "64 ≤ n ≤ 256 stands for the lengths measured in that range, not for those between them.",
    ]
