"""Two stored runs of one machine and one plan side by side: what became slower, larger, wrong or right between them.

What may be said of it. The rounds of two runs were not interleaved: what the machine did on the one day and not on the
other is in every ratio of their seconds, and no interval of ours covers that. Such a ratio is shown without an interval
and without a verdict. Within each run a contender raced the run's baseline round by round, so that the ratio of the two
has an interval (`attnlab.stats.verdicts`) in which the day cancels. Where the two runs' intervals are disjoint, and
further apart than the margin that counts as no difference, that ratio is called changed.

How often is that wrong? The intervals of a run miss in 5 % of workloads at most, shared among all contenders compared
at the workload (Bonferroni, not step by step as for verdicts: here the intervals are believed, all at once). Disjoint
intervals around an unchanged ratio mean that one of them missed: at most 10 % of workloads show a false change, and far
fewer, as two intervals are disjoint only where the difference is as large as both of their half widths together. The
chance is one a workload: of a hundred workloads some may show one.

What a change is not. It says that the ratio was another in these two runs, not why: versions, the other conditions of
that day, or the baseline, with which all ratios of a workload change, and then most of them the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnlab.environment import CONDITIONS, SOFTWARE, comparable, differing, versions
from attnlab.runs.store import Run
from attnlab.stats.analysis import Cell
from attnlab.stats.ranking import entered_once
from attnlab.stats.verdicts import Verdict, compare
from attnlab.workload.result import Outcome

NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Row:
    """A contender at a workload; what is a list holds the first run's and the second's, None where there is none.

    ratio : seconds of the second by those of the first; they did not race. against_baseline : its time by that of the
    baseline of its own run, with its interval. changed : whether these two differ; None where that cannot be told.
    """

    workload: str
    contender: str
    outcomes: list[str]
    reasons: list[str | None]
    seconds: list[float | None]
    peak_bytes: list[int | None]
    kernels: list[str | None]
    ratio: float | None
    against_baseline: list[Verdict | None]
    changed: bool | None

    @property
    def news(self) -> int:
        """0 for one that was measured and is no more, 1 for another new outcome, 2 for none."""
        was, is_ = self.outcomes
        return 2 if was == is_ else int(was != Outcome.MEASURED)


@dataclass(frozen=True)
class Diff:
    """Two runs side by side: `rows`, new outcomes first, then what changed; software and conditions that differ."""

    baseline: str
    software: Mapping[str, tuple[str, str]]
    conditions: Mapping[str, tuple[str, str]]
    rows: list[Row]


def diff(first: Run, second: Run, *, anyway: bool = False) -> Diff:
    """The second run beside the first.

    anyway : also where machine, variables or plan differ; nothing is called changed then. Raises ValueError, in one
    line, where they do and it is not, and for a run and itself, and two that share no workload.
    """
    if first.folder.resolve() == second.folder.resolve() or (first.id and first.id == second.id):
        raise ValueError(f"both are one run, {first.folder}: name two")
    one, other = (
        {cell.workload: cell for cell in run.judged().cells if cell.answers} for run in (first, second)
    )
    if one.keys().isdisjoint(other):
        raise ValueError(f"{first.folder} and {second.folder} have no workload in common")
    asked = [_asked(run, beside) for run, beside in ((first, second), (second, first))]
    here = [{**comparable(run.environment), **of} for run, of in zip((first, second), asked, strict=True)]
    conditions = differing(
        here[0], here[1], [name for name in (*CONDITIONS, *asked[0]) if name not in SOFTWARE]
    )
    if conditions and not anyway:
        told = "; ".join(f"{name}: {was} and {is_}" for name, (was, is_) in conditions.items())
        raise ValueError(
            f"the runs were made under different conditions: {told}. --anyway shows them side by side"
        )
    known = [versions({**run.environment, "variables": {}}) for run in (first, second)]
    both = {
        name: (known[0].get(name, "none"), known[1].get(name, "none")) for name in {**known[0], **known[1]}
    }
    software = {name: (was, is_) for name, (was, is_) in both.items() if was != is_}
    baseline = entered_once(first.baseline)
    common = [(cell, other[workload]) for workload, cell in one.items() if workload in other]
    rows = [row for cells in common for row in _rows(cells, baseline, judged=not conditions)]
    rows.sort(key=lambda row: (row.news, not row.changed))
    return Diff(baseline, software, conditions, rows)


def _asked(run: Run, beside: Run) -> dict[str, object]:
    """What decides what was asked in a run, where it is not so in the one beside, and for how long it was measured."""
    plan, other = run.plan, beside.plan
    labels = ", ".join(sorted({one.label for one in plan.workloads} - {one.label for one in other.workloads}))
    names = ", ".join(one for one in plan.contenders if one not in other.contenders)
    own = {"workloads of its own": labels or "none", "contenders of its own": names or "none"}
    return {**own, "baseline": run.baseline, **vars(plan.limits)}


def _rows(cells: tuple[Cell, Cell], baseline: str, *, judged: bool) -> Iterator[Row]:
    one, other = cells
    raced = [name for name in one.measured if name in other.measured and name != baseline]
    for name in {**one.answers, **other.answers}:
        answers = [cell.answers.get(name) for cell in cells]
        seconds = [
            each.latency.median if each and each.latency else None
            for each in (cell.measured.get(name) for cell in cells)
        ]
        held = [_against(cell, name, baseline, len(raced)) for cell in cells]
        changed = None
        if judged and held[0] and held[1] and min(held[0].low, held[1].low) > 0:
            margin = 1 + max(one.margin, other.margin)
            changed = held[0].high * margin < held[1].low or held[1].high * margin < held[0].low
        yield Row(
            one.workload.label,
            name,
            [str(each.outcome) if each else NOT_ASKED for each in answers],
            [each.reason if each else None for each in answers],
            seconds,
            [each.peak_bytes if each else None for each in answers],
            [each.kernel if each else None for each in answers],
            seconds[1] / seconds[0] if seconds[0] and seconds[1] else None,
            held,
            changed,
        )


def _against(cell: Cell, name: str, baseline: str, comparisons: int) -> Verdict | None:
    """The verdict on a contender against the baseline of its own run; None where either was not measured."""
    pair = [cell.measured[each].latency for each in (baseline, name) if each in cell.measured]
    if name == baseline or len(pair) < 2 or pair[0] is None or pair[1] is None:
        return None
    if pair[0].by_round().keys().isdisjoint(pair[1].by_round()):
        return None
    return compare(pair[0], pair[1], comparisons=comparisons, margin=cell.margin)
