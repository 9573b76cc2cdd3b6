"""Two stored runs of one machine and one plan, side by side: what became slower, larger, wrong or right.

What can be said. The rounds of two runs were not interleaved. So a ratio of their seconds also contains all that the
machine did differently on the two days, and no interval here covers that. Such a ratio is shown without an interval and
without a verdict. Within each run, a contender raced the run's baseline round by round. The ratio of these two has an
interval (`attnlab.stats.intervals`), and the influence of the day cancels in it. If the intervals of the two runs are
disjoint, and further apart than the margin that counts as no difference, this ratio is called changed.

How often is that wrong? The intervals of a run miss the true ratio in at most 5 % of workloads. This error is shared
among all contenders compared at a workload (Bonferroni, not stepwise as for verdicts, because here all intervals must
hold at once). If the ratio is unchanged and the intervals are disjoint, one of them has missed it. So at most 10 % of
workloads show a false change. The real number is far smaller: two intervals are disjoint only if the difference is as
large as both half widths together. The chance is per workload: of a hundred workloads, some may show a false change.

What a change does not say. It says that the ratio differed in these two runs, but not why. The reason may be versions,
other conditions on that day, or the baseline. If the baseline changed, all ratios of a workload change, most of them in
the same direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnlab.environment import CONDITIONS, SOFTWARE, differing, versions
from attnlab.runs.store import Run
from attnlab.stats.analysis import Cell
from attnlab.stats.intervals import Verdict, compare
from attnlab.stats.ranking import entered_once
from attnlab.workload.result import Outcome

NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Side:
    """What a contender did at a workload in one run; `against_baseline` : its time over that of the run's baseline."""

    outcome: str = NOT_ASKED
    reason: str | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    kernel: str | None = None
    against_baseline: Verdict | None = None


@dataclass(frozen=True)
class Row:
    """A contender at a workload in both runs. changed : whether its ratio to the baseline changed; None if unknown."""

    workload: str
    contender: str
    was: Side
    now: Side
    changed: bool | None

    @property
    def news(self) -> int:
        """0 if it was measured and no longer is, 1 for any other new outcome, 2 for the same outcome."""
        return 2 if self.was.outcome == self.now.outcome else int(self.was.outcome != Outcome.MEASURED)


@dataclass(frozen=True)
class Diff:
    """Two runs side by side: `rows` (new outcomes first, then changed ratios), software and conditions that differ."""

    baseline: str
    software: Mapping[str, tuple[str, str]]
    conditions: Mapping[str, tuple[str, str]]
    rows: list[Row]


def diff(first: Run, second: Run, *, anyway: bool = False) -> Diff:
    """Compare the second run with the first.

    anyway : compare them also if machine, variables or plan differ; then nothing is called changed. Raises ValueError,
    in one line, if they differ and `anyway` is False, if both are the same run, and if they share no workload.
    """
    if first.folder.resolve() == second.folder.resolve() or (first.id and first.id == second.id):
        raise ValueError(f"both are one run, {first.folder}: name two")
    runs = (first, second)
    one, other = ({cell.workload: cell for cell in run.judged().cells if cell.answers} for run in runs)
    if one.keys().isdisjoint(other):
        raise ValueError(f"{first.folder} and {second.folder} have no workload in common")
    asked = [_asked(first, second), _asked(second, first)]
    names = [name for name in (*CONDITIONS, *asked[0]) if name not in SOFTWARE]
    was, now = ({**run.environment, **of} for run, of in zip(runs, asked, strict=True))
    conditions = differing(was, now, names)
    if conditions and not anyway:
        told = "; ".join(f"{name}: {before} and {after}" for name, (before, after) in conditions.items())
        raise ValueError(f"the runs had different conditions: {told}. --anyway shows them side by side")
    known = [versions({**run.environment, "variables": {}}) for run in runs]
    every = dict.fromkeys({**known[0], **known[1]}, "none")
    software = differing({**every, **known[0]}, {**every, **known[1]}, list(every))
    baseline = entered_once(first.baseline)
    both = [(cell, other[workload]) for workload, cell in one.items() if workload in other]
    rows = [row for cells in both for row in _rows(*cells, baseline, judged=not conditions)]
    rows.sort(key=lambda row: (row.news, not row.changed))
    return Diff(baseline, software, conditions, rows)


def _asked(run: Run, beside: Run) -> dict[str, object]:
    """What `run` asked and `beside` did not (workloads, contenders), with the baseline and the limits of `run`."""
    labels = {one.label for one in run.plan.workloads} - {one.label for one in beside.plan.workloads}
    names = [one for one in run.plan.contenders if one not in beside.plan.contenders]
    own = {"workloads of its own": ", ".join(sorted(labels)), "contenders of its own": ", ".join(names)}
    told = {name: text or "none" for name, text in own.items()}
    return {**told, "baseline": run.baseline, **vars(run.plan.limits)}


def _rows(one: Cell, other: Cell, baseline: str, *, judged: bool) -> Iterator[Row]:
    raced = [name for name in one.measured if name in other.measured and name != baseline]
    for name in {**one.answers, **other.answers}:
        was, now = (_side(cell, name, baseline, len(raced)) for cell in (one, other))
        before, after, changed = was.against_baseline, now.against_baseline, None
        if judged and before and after and min(before.low, after.low) > 0:
            margin = 1 + max(one.margin, other.margin)
            changed = before.high * margin < after.low or after.high * margin < before.low
        yield Row(one.workload.label, name, was, now, changed)


def _side(cell: Cell, name: str, baseline: str, comparisons: int) -> Side:
    result = cell.answers.get(name)
    if result is None:
        return Side()
    mine, base = (cell.measured[one].latency if one in cell.measured else None for one in (name, baseline))
    verdict = None
    if name != baseline and mine and base and not base.by_round.keys().isdisjoint(mine.by_round):
        verdict = compare(base, mine, comparisons=comparisons, margin=cell.margin)
    seconds = mine.median if mine else None
    return Side(str(result.outcome), result.reason, seconds, result.peak_bytes, result.kernel, verdict)
