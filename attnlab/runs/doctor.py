"""Is a stored run whole, and is what it holds what a run of this version would hold?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnlab.runs.lock import is_held
from attnlab.runs.store import RUN_FILE, TORN, Run, read_run


@dataclass(frozen=True)
class Complaint:
    """One thing that a reader of the run must know. `fault` is False where nothing is broken."""

    text: str
    fault: bool = True


def examine(folder: Path | str) -> list[Complaint]:
    """Everything that is wrong with the run in `folder`, or worth knowing; nothing is changed."""
    try:
        run = read_run(folder)
    except ValueError as fault:
        return [Complaint(str(fault))]
    return [*_state(run), *_results(run)]


def _state(run: Run) -> Iterator[Complaint]:
    total, left = len(run.plan.workloads), len(run.left())
    again = f"attnlab run --resume {run.folder}"
    writing = is_held(run.folder)
    if writing:
        yield Complaint("a run is writing to this folder now", fault=False)
    if not run.complete and not writing:
        yield Complaint(
            f"interrupted with {left} of {total} workloads left; go on with: {again}", fault=False
        )
    elif left and not writing:
        yield Complaint(
            f"it is called complete, but {left} of {total} workloads have no result; measure again"
        )
    if run.torn and not writing:
        mend = "" if run.complete else f"; to measure it: {again}"
        text = f"the last line of the results was cut off, one answer is lost{mend}"
        yield Complaint(text, fault=run.complete)
    if (run.folder / TORN).exists():
        yield Complaint(f"{TORN} holds what was set aside when the run was gone on with", fault=False)
    if run.further:
        named = ", ".join(sorted(run.further))
        yield Complaint(
            f"{RUN_FILE} holds entries that this version does not know: {named}; they are kept", fault=False
        )


def _results(run: Run) -> Iterator[Complaint]:
    places = Counter((one.workload, one.contender) for one in run.results)
    for (workload, contender), count in places.items():
        if count > 1:
            yield Complaint(f"{workload.label}: {contender} has {count} results; one is expected")
        if contender not in run.contenders:
            yield Complaint(f"{workload.label}: {contender} is no contender of this run's plan")
    planned = set(run.plan.workloads)
    answered = list(dict.fromkeys(one.workload for one in run.results))
    for workload in answered:
        if workload not in planned:
            yield Complaint(f"{workload.label} is no workload of this run's plan")
        missing = [name for name in run.contenders if (workload, name) not in places]
        if missing:
            last = workload == answered[-1] and not run.complete
            yield Complaint(f"{workload.label}: no result of {', '.join(missing)}", fault=not last)
    for result in run.results:
        for one in result.measurements:
            if not all(math.isfinite(sample) and sample >= 0 for sample in one.samples):
                yield Complaint(
                    f"{result.workload.label}: {result.contender} has a {one.quantity} that is no number from 0 up"
                )
