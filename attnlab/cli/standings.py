"""A table of where a race stands or how it ended, a row a workload, and the verdict below it: for a terminal.

The same rows while ``attnlab run`` goes on, at its end, and in ``attnlab show``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from attnlab.judge.analysis import Cell
from attnlab.judge.pairing import Kind
from attnlab.problem.result import Outcome
from attnlab.units import bytes_text, interval, ratio, seconds_text

if TYPE_CHECKING:
    from attnlab.runs.store import Run

#: columns of the table
COLUMNS = ("workload", "first", "time", "next", "takes", "open", "peak", "rel. error", "no speed")


def undecided(cell: Cell) -> tuple[int, int]:
    """How many verdicts on other implementations against the first are undecided, and of how many."""
    if cell.ranking is None:
        return 0, 0
    taken = cell.ranking.best.implementation
    verdicts = [one.against_best for one in cell.ranking.standings if one.implementation != taken]
    return sum(one is None or one.kind is Kind.UNDECIDED for one in verdicts), len(verdicts)


def row(cell: Cell) -> list[str]:
    """What stands in `COLUMNS`."""
    outcomes = (one.outcome for one in cell.answers.values())
    left_out = Counter(str(one).replace("_", " ") for one in outcomes if one is not Outcome.MEASURED)
    others = ", ".join(f"{count} {what}" for what, count in left_out.items())
    label = escape(cell.workload.label)
    if cell.ranking is None:
        return [label, "nobody", *[""] * (len(COLUMNS) - 3), others]
    result, (still, of), lead = cell.answers[cell.ranking.best.contender], undecided(cell), cell.won.ahead
    takes = ""
    if lead is not None:
        span = "" if lead.low is None or lead.high is None else f" {interval(lead.low, lead.high)}"
        takes = f"{ratio(lead.ratio)}{span} ×"
    return [
        label,
        escape(" ≈ ".join(cell.won.first)),
        seconds_text(cell.won.seconds),
        "" if lead is None else escape(lead.over),
        escape(takes),
        f"{still} of {of}" if still else "",
        "" if result.peak_bytes is None else bytes_text(result.peak_bytes),
        "" if result.accuracy is None else f"{result.accuracy.relative_error:.1e}",
        others,
    ]


def table(cells: Iterable[Cell], title: str = "") -> Table:
    """A row a workload; columns in which nothing stands are left out."""
    found = list(map(row, cells))
    shown = [at for at in range(len(COLUMNS)) if at < 2 or any(one[at] for one in found)]
    made = Table(title=title or None, title_justify="left")
    for at in shown:
        made.add_column(COLUMNS[at], overflow="fold")
    for one in found:
        made.add_row(*(one[at] for at in shown))
    return made


def show_run(run: Run, *, quiet: bool = False) -> None:
    """Print a run's table and its verdict; with `quiet` the verdict alone. Who is tied stands beside who is first.

    Of a run that is not complete, what there is.
    """
    from attnlab.cli.tables import show
    from attnlab.report import content_of, in_words

    content = content_of(run)
    cells = [one for one in content.analysis.cells if one.answers]
    if cells and not quiet:
        show(table(cells))
    click.echo(in_words(content))
