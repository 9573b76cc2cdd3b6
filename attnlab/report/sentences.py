"""The report's sentences about the whole run: warnings, verdict, what was measured, and how steady the machine was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.analysis import Analysis
from attnlab.report.avoid import avoid
from attnlab.report.winners import crossings, winners

#: where a contender differs from itself by more than this, other programs were using the machine
BUSY = 0.10


def about(analysis: Analysis) -> str:
    """What was measured, where and when."""
    run = analysis.run
    when = run.started.replace("T", " ").replace("+00:00", " UTC") if run.started else "at an unknown time"
    measured = sum(any(name in cell.measured for cell in analysis.cells) for name in analysis.names)
    text = (
        f"{wording.counted(len(analysis.names), 'contender')}, {measured} of them measured, on "
        f"{wording.counted(len(run.plan.workloads), 'workload')} ({analysis.shared}), "
        f"{machine(run.environment)}, {when}."
    )
    if len(analysis.groups) > 1:
        text += f" The workloads form {len(analysis.groups)} groups, each ranked by itself: "
        text += "; ".join(group.name for group in analysis.groups) + "."
    return text


def machine(environment: Mapping[str, Any]) -> str:
    """The processor or GPU in words, with its cores and memory, as far as the environment tells."""
    words = [name for key in ("gpu", "cpu") if (name := next(_strings(environment.get(key)), None))]
    cores = environment.get("cores")
    if isinstance(cores, Mapping):
        cores = cores.get("logical")
    if isinstance(cores, int):
        words.append(wording.counted(cores, "logical core"))
    memory = environment.get("memory_bytes")
    if isinstance(memory, int):
        words.append(units.bytes_text(memory))
    return ", ".join(words) if words else "a machine that was not recorded"


def _strings(value: Any) -> Iterator[str]:
    """Every text in `value`, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)


def warnings(analysis: Analysis) -> list[str]:
    """What a reader must know before trusting anything: an interrupted run, a failed self-test."""
    found = []
    run, tested = analysis.run, analysis.self_test
    if not run.complete:
        answered = sum(1 for cell in analysis.cells if cell.answers)
        found.append(
            f"This run was interrupted: {answered} of {wording.counted(len(run.plan.workloads), 'workload')} "
            "were answered. What follows holds for those alone."
        )
    if tested.failures:
        text = (
            f"The self-test failed on {len(tested.failures)} of "
            f"{wording.counted(len(tested.twins), 'workload')}: one contender, entered twice, differed from "
            f"itself. **Differences smaller than {units.percent(tested.resolution)} cannot be told from noise on "
            "this machine**; the verdicts below call them ties."
        )
        if tested.resolution > BUSY:
            text += " The machine was too busy to measure on: repeat the run when nothing else runs on it."
        found.append(text)
    refused = sum(len(cell.faults) for cell in analysis.cells)
    if refused:
        found.append(
            f"{wording.counted(refused, 'measurement')} came out above the measured ceiling of this machine. They are "
            "failed measurements, of the speed or of the ceiling, and are left out."
        )
    return found


def verdict(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """(heading, sentences) for each group of workloads; the heading is empty where there is one group."""
    if not analysis.anything_measured:
        return [("", ["Nothing was measured; the table of those left out says why."])]
    chapters = []
    for group in analysis.groups:
        sentences = winners(analysis, group) + crossings(analysis, group) + avoid(analysis, group)
        chapters.append((group.name, sentences or ["Nothing was measured here."]))
    return chapters


def footnote(analysis: Analysis) -> str:
    """What the intervals and the ties above mean."""
    return (
        "Square brackets hold 95 % intervals; the 5 % are shared among the comparisons of one workload. "
        f"Contenders within ±{units.percent(analysis.margin)} of each other count as equivalent."
    )


def self_test_summary(analysis: Analysis) -> str:
    """The self-test in a sentence or two, and how many rounds were left out."""
    tested = analysis.self_test
    rankings = [cell.ranking for cell in analysis.cells if cell.ranking is not None]
    left_out = sum(one.disturbed for one in rankings)
    every = left_out + sum(one.rounds for one in rankings)
    rounds = (
        f"{left_out} of {wording.counted(every, 'round')} were left out for every contender alike, because a "
        "fixed calibration loop took more than 10 % longer or shorter in them than usual."
    )
    if not tested.twins:
        return f"No contender was entered twice, so there is no self-test. {rounds}"
    worst = max(tested.twins, key=lambda one: one.deviation)
    failed = f"{len(tested.failures)}" if tested.failures else "none"
    return (
        f"`{worst.contender}` was entered twice. Its two entries differed by more than "
        f"±{units.percent(tested.margin)}, with the whole interval, on {failed} of "
        f"{wording.counted(len(tested.twins), 'workload')}; the largest difference was "
        f"{units.percent(worst.deviation)}. {rounds}"
    )
