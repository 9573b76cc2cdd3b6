"""What a self-test of the instrument found: a verdict in sentences, and a table of every trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnlab.race.selftest import FIDELITY, IDLE, MUST_FIND, WORKLOAD, Report, Trial
from attnlab.report.layout import markdown
from attnlab.report.sentences import machine
from attnlab.text import interval_text, percent

_BESIDE = {
    IDLE: "on the machine as it is",
    "cpu": "beside a process that takes a core",
    "memory": "beside a process that copies memory without a pause",
}
_QUESTIONS = {
    "fidelity": "in the race / alone",
    "A/A": "against itself",
    "slowed": "slowed",
}
_WORDS = {True: "yes", False: "**NO**", None: "not told"}
COLUMNS: Mapping[str, Callable[[Trial], object]] = {
    "question": lambda one: _QUESTIONS[one.question],
    "condition": lambda one: _BESIDE[one.condition],
    "contender": lambda one: f"`{one.contender}`",
    "true ratio": lambda one: f"{one.truth:.2f}",
    "found": lambda one: "" if one.ratio is None else f"{one.ratio:.3f}",
    "interval": lambda one: "" if one.low is None or one.high is None else interval_text(one.low, one.high),
    "said": lambda one: one.said,
    "right": lambda one: _WORDS[one.passed],
}


def verdict(found: Report) -> list[str]:
    """Whether to believe the instrument here, and from which difference on, in plain sentences."""
    if found.passed:
        said = [f"Passed: none of {len(found.trials)} answers was wrong."]
    else:
        said = [f"FAILED: {len(found.failures)} of {len(found.trials)} answers were wrong."]
        said += [
            f"{one.contender}, {_QUESTIONS[one.question]}, {_BESIDE[one.condition]}: {one.said}, "
            f"{'no ratio' if one.ratio is None else f'ratio {one.ratio:.3f}'} where {one.truth:.2f} is right."
            for one in found.failures
        ]
    for condition in dict.fromkeys(one.condition for one in found.trials if one.question == "slowed"):
        least = found.smallest_found(condition)
        what = f"differences from {least:g} % on were found" if least else "no slow-down was found"
        said.append(f"{_BESIDE[condition].capitalize()}, {what}.")
    if found.others:
        said.append(
            f"Other programs took up to {found.others} of the idle machine: repeat it when nothing else runs."
        )
    untold = sum(one.passed is None for one in found.trials)
    if untold:
        said.append(
            f"{untold} answers could not be told and were called undecided, which is right but of no use."
        )
    return said


def page(found: Report) -> str:
    """The page of a self-test, whole."""
    started = found.started.replace("T", " ").replace("+00:00", " UTC")
    shown = {name: cell for name, cell in COLUMNS.items() if name not in ("condition", "true ratio")}
    parts = [
        "# The instrument put to the test",
        f"{machine(found.environment)}, {started}; {found.seconds:.0f} s. Made by `attnlab selftest`.",
        "\n".join(f"- {one}" for one in verdict(found)),
        f"All at {WORKLOAD.label}. A race must agree with bare processes to within {percent(FIDELITY)} (it is wrong "
        "where all of the interval is further off), must never call a contender faster or slower than itself, and must "
        f"find {MUST_FIND:g} % on an idle machine. `slowed=P` waits after every call for P % of its time: the true "
        "ratio is 1 + P/100, and 1 elsewhere. Undecided is never wrong; a wrong sign always is.",
    ]
    for condition in dict.fromkeys(one.condition for one in found.trials):
        trials = [one for one in found.trials if one.condition == condition]
        rows = [[cell(one) for cell in shown.values()] for one in trials]
        parts += [f"## {_BESIDE[condition].capitalize()}", markdown(list(shown), rows, left=2, narrow=True)]
    parts.append(
        f"What this machine does not tell: {', '.join(found.environment.get('not_seen_here') or ['nothing'])}."
    )
    return "\n\n".join(parts) + "\n"
