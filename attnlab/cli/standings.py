"""A table of where a race stands or how it ended, a row a workload, and the verdict below it: for a terminal.

The same rows while ``attnlab run`` goes on, at its end, and in ``attnlab show``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from attnlab.judge.pairing import Kind
from attnlab.judge.ranking import Lead, Ranking, entered_once, is_second_entry, rank, winner
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.units import bytes_text, interval, ratio, seconds_text

if TYPE_CHECKING:
    from attnlab.runs.store import Run

#: columns of the table
COLUMNS = ("workload", "first", "time", "next", "takes", "open", "peak", "rel. error", "no speed")


@dataclass(frozen=True)
class Standings:
    """One workload: its ranking, None where nobody was measured, and every contender's answer, each once."""

    workload: Workload
    ranking: Ranking | None
    answers: Mapping[str, Result]

    @classmethod
    def so_far(cls, results: Sequence[Result], baseline: str, margin: float) -> Standings:
        """Those of one finished workload, as they are before ceilings and self-test can take a figure back."""
        once = {one.contender: one for one in results if not is_second_entry(one.contender)}
        measured = {name: one for name, one in once.items() if one.outcome is Outcome.MEASURED}
        exact = {name: one for name, one in measured.items() if one.computes_in is None} or measured
        ranking = rank(exact, baseline=entered_once(baseline), margin=margin)
        return cls(results[0].workload, ranking, once)

    @property
    def open(self) -> tuple[int, int]:
        """How many verdicts on other implementations against the first are undecided, and of how many."""
        if self.ranking is None:
            return 0, 0
        taken = self.ranking.best.implementation
        others = (one for one in self.ranking.standings if one.implementation != taken)
        verdicts = [one.against_best for one in others]
        return sum(one is None or one.kind is Kind.UNDECIDED for one in verdicts), len(verdicts)

    def cells(self) -> list[str]:
        """The row of `COLUMNS`."""
        left_out = Counter(
            str(one.outcome).replace("_", " ")
            for one in self.answers.values()
            if one.outcome is not Outcome.MEASURED
        )
        others = ", ".join(f"{count} {what}" for what, count in left_out.items())
        label = escape(self.workload.label)
        if self.ranking is None:
            return [label, "nobody", *[""] * (len(COLUMNS) - 3), others]
        won = winner(self.ranking, list(self.answers))
        best = self.ranking.best
        result, (undecided, of) = self.answers[best.contender], self.open
        peak, accuracy = result.peak_bytes, result.accuracy
        return [
            label,
            escape(" ≈ ".join(won.first)),
            seconds_text(won.seconds),
            *map(escape, _lead(won.ahead)),
            f"{undecided} of {of}" if undecided else "",
            "" if peak is None else bytes_text(peak),
            "" if accuracy is None else f"{accuracy.relative_error:.1e}",
            others,
        ]


def _lead(lead: Lead | None) -> tuple[str, str]:
    """The fastest other implementation, and its time in times of the first: ``1.53 [1.49, 1.57] ×``."""
    if lead is None:
        return "", ""
    span = "" if lead.low is None or lead.high is None else f" {interval(lead.low, lead.high)}"
    return lead.over, f"{ratio(lead.ratio)}{span} ×"


def table(rows: Iterable[Standings], title: str = "") -> Table:
    """A row a workload; columns in which nothing stands are left out."""
    found = [one.cells() for one in rows]
    shown = [at for at in range(len(COLUMNS)) if at < 2 or any(cells[at] for cells in found)]
    made = Table(title=title or None, title_justify="left")
    for at in shown:
        made.add_column(COLUMNS[at], overflow="fold")
    for cells in found:
        made.add_row(*(cells[at] for at in shown))
    return made


def show_run(run: Run, *, quiet: bool = False) -> None:
    """Print a run's table and its verdict; with `quiet` the verdict alone. Who is tied stands beside who is first.

    Of a run that is not complete, what there is.
    """
    from attnlab.cli.tables import show
    from attnlab.report import content_of, in_words

    content = content_of(run)
    if not quiet:
        cells = [one for one in content.analysis.cells if one.answers]
        if cells:
            show(table(Standings(one.workload, one.ranking, one.answers) for one in cells))
    click.echo(in_words(content))
