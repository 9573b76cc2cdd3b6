"""The tables that commands print.

That of a race, a row a workload with the verdict below it, is the same while ``attnlab run`` goes on, at its end, and
in ``attnlab show``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from attnlab.judge.analysis import Cell
from attnlab.judge.groups import condition, conditions
from attnlab.judge.verdicts import Kind
from attnlab.problem.result import SAME_BITS, Outcome
from attnlab.problem.workload import Workload
from attnlab.race.compare import Comparison
from attnlab.race.selftest import Report
from attnlab.report.layout import plain
from attnlab.report.selftest_page import COLUMNS
from attnlab.report.tables import MARKS
from attnlab.runs.check import Checked
from attnlab.runs.presets import Part
from attnlab.runs.support import Listed
from attnlab.text import bytes_text, counted, flops_text, interval_text, ratio_text, seconds_text

if TYPE_CHECKING:
    from attnlab.experiments.claims import Ledger
    from attnlab.runs.store import Run


T = TypeVar("T")


def show(*tables: Table) -> None:
    """Print those of `tables` that have rows, on standard output, as wide as they need where that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for table in tables:
        if table.row_count:
            console.print(table)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", *, lines: bool = False
) -> Table:
    """A table of `rows`; all of it is plain text."""
    columns = (Column(escape(one), overflow="fold") for one in headers)
    made = Table(*columns, title=title or None, title_justify="left", show_lines=lines)
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def _known(value: T | None, text: Callable[[T], str]) -> str:
    return "" if value is None else text(value)


def selftest_table(found: Report) -> Table:
    """A row a trial: what was asked, what is true, what was found."""
    rows = ([plain(str(shown(one))) for shown in COLUMNS.values()] for one in found.trials)
    return table(list(COLUMNS), rows)


def comparison_table(found: Comparison) -> Table:
    """A row a contender: time, ratio with its interval, verdict, set-up, memory, error."""
    headers = "contender | outcome | median | ratio | 95 % interval | verdict | set-up | peak | rel. error"
    rows = []
    for one in found.to_json()["contenders"]:
        low, high = one["ratio_low"], one["ratio_high"]
        row = (
            one["name"] + _known(one["computes_in"], ", in {}".format),
            one["outcome"],
            _known(one["seconds_median"], seconds_text),
            _known(one["ratio"], "{:.3f}".format),
            "none"
            if one["no_interval"]
            else f"{low:.3f} to {high:.3f}"
            if one["verdict"] in set(Kind)
            else "",
            one["verdict"] or "",
            _known(one["setup_seconds"], seconds_text),
            _known(one["peak_bytes"], bytes_text),
            _known(one["relative_error"], "{:.1e}".format),
        )
        rows.append(row)
    return table(headers.split(" | "), rows, f"{found.workload.label}, against {found.baseline}")


def check_table(found: Sequence[Checked]) -> Table:
    """A row a backend and number format: right or not, and why; one a backend of which none was asked."""
    headers = "backend | dtype | result | asked | declined | too slow | not compiled for | gradients | ln Z | reason"
    rows = []
    for checked in found:
        lacks = f"no gradients: {checked.no_gradients}" if checked.passed and checked.no_gradients else ""
        for dtype, word, one in checked.lines:
            counts = (one.asked, one.declined, one.left_out, one.uncompiled) if dtype else [""] * 4
            further = [
                word if dtype in of else "none" if one.passed else ""
                for of in (checked.gradients, checked.log_sums)
            ]
            why, lacks = (lacks, "") if one.passed else (one.reason, lacks)
            rows.append((checked.name, dtype, word, *counts, *further, why))
    return table(headers.split(" | "), rows)


def precision_table(found: Sequence[Checked]) -> Table:
    """A row a backend, dtype and direction: how exact it is, for those that answered."""
    title = (
        "precision: error in units of the budget of its class, largest in units in the last place, "
        "z of the error along the result"
    )
    rows = [
        (
            one.name,
            dtype + (f", in {one.lower[dtype]}" if dtype in one.lower else ""),
            what,
            answers[dtype]["class"] or "none",
            f"{answers[dtype]['relative_error']:.2e}",
            f"{answers[dtype]['budget_ratio']:.2f}",
            f"{answers[dtype]['max_ulp']:.3g}",
            f"{answers[dtype]['bias']:+.1f}",
        )
        for one in found
        for dtype in one.precision
        for what, answers in (("output", one.precision), ("gradients", one.gradients), ("ln Z", one.log_sums))
        if dtype in answers
    ]
    return table(["backend", "dtype", "of", "class", "relative error", "budgets", "ulp", "bias"], rows, title)


def same_bits_table(found: Sequence[Checked]) -> Table:
    """A row a backend and dtype: where it gives the same bits again."""
    words = {True: "same", False: "differ", None: ""}
    rows = [
        (one.contender, one.dtype, *(words[one.same.get(name)] for name in SAME_BITS), one.reason or "")
        for checked in found
        for one in checked.invariance
    ]
    title = "the same bits again, and when a part is computed by itself"
    return table(("backend", "dtype", *SAME_BITS, ""), rows, title)


def backend_table(device: str, found: Sequence[Listed]) -> Table:
    """A row a backend: whether it can run on `device`, and what it is or why it cannot."""
    rows = [
        (one.name, one.library, "no" if one.reason else "yes", one.reason or one.summary) for one in found
    ]
    headers = "backend | library | here | what it is, or why it cannot run"
    return table(headers.split(" | "), rows, f"backends on {device}")


_COSTS = "FLOPs | score matrix | least bytes"


def _costs(one: Workload) -> tuple[str, str, str]:
    return flops_text(one.flops).removesuffix("/s"), bytes_text(one.score_bytes), bytes_text(one.least_bytes)


def presets_table(parts: Sequence[Part]) -> Table:
    """A row a part of a preset: its shape, its lengths, and what the shortest and the longest cost."""
    rows = []
    for part in parts:
        found = part.workloads()
        ends = zip(_costs(found[0]), _costs(found[-1]), strict=True)
        lengths = ", ".join(map(str, part.said["lengths"]))
        rows.append((part.path, _shape(part), lengths, *(" to ".join(dict.fromkeys(pair)) for pair in ends)))
    return table(f"preset | shape | lengths | {_COSTS}".split(" | "), rows, "presets")


def costs_table(parts: Sequence[Part]) -> Table:
    """A row a workload of these parts: what it costs."""
    rows = [(part.path, one.label, *_costs(one)) for part in parts for one in part.workloads()]
    return table(f"preset | workload | {_COSTS}".split(" | "), rows)


def _shape(part: Part) -> str:
    """What the workloads of a part have in common, at the longest length."""
    longest = part.workloads()[-1]
    told = conditions(longest, part.tokens)
    if longest.queries != longest.keys and "keys" in part.said:
        told["queries"] = None
    said = [condition(name, value) for name, value in told.items() if name not in ("dtype", "device")]
    said = [f"{counted(longest.heads, 'head')}", *filter(None, said)]
    if "keys" in part.said:
        said.append(f"n queries over {longest.keys} keys")
    return ", ".join(one for one in said if one != "batch 1")


def claims_table(listed: Sequence[tuple[str, str, str]]) -> Table:
    """A row a claim: its id, its theme, and what is said."""
    return table(["id", "theme", "claim"], listed, "claims")


def ledger_table(found: Ledger) -> Table:
    """A row a claim: verdict, claim, right statement, the deciding figure."""
    from attnlab.experiments.claims import ClaimVerdict

    words = {one: str(one) for one in ClaimVerdict}
    rows = [
        (one.id, one.verdict_in(words), one.says, one.truth, one.deciding_figure) for one in found.entries
    ]
    headers = "id | verdict | claim | what is so | deciding figure"
    return table(headers.split(" | "), rows, "what is claimed", lines=True)


# -- a race ------------------------------------------------------------------------------------------

#: columns of the table of a race
_COLUMNS = ("workload", "first", "time", "next", "takes", "open", "peak", "rel. error", "no speed")


def undecided(cell: Cell) -> tuple[int, int]:
    """How many verdicts on other implementations against the first are undecided, and of how many."""
    if cell.ranking is None:
        return 0, 0
    taken = cell.ranking.best.implementation
    verdicts = [one.against_best for one in cell.ranking.standings if one.implementation != taken]
    return sum(one is None or one.kind is Kind.UNDECIDED for one in verdicts), len(verdicts)


def _row(cell: Cell) -> list[str]:
    """What stands in `_COLUMNS`."""
    outcomes = (one.outcome for one in cell.answers.values())
    left_out = Counter(str(one).replace("_", " ") for one in outcomes if one is not Outcome.MEASURED)
    others = ", ".join(f"{count} {what}" for what, count in left_out.items())
    label = cell.workload.label
    if cell.ranking is None:
        return [label, "nobody", *[""] * (len(_COLUMNS) - 3), others]
    result, (still, of), lead = cell.answers[cell.ranking.best.contender], undecided(cell), cell.won.ahead
    takes = ""
    if lead is not None:
        span = "" if lead.low is None or lead.high is None else f" {interval_text(lead.low, lead.high)}"
        takes = f"{ratio_text(lead.ratio)}{span} ×"
    return [
        label,
        f" {MARKS[cell.won.sure]} ".join(cell.won.first),
        seconds_text(cell.won.seconds),
        "" if lead is None else lead.over,
        takes,
        f"{still} of {of}" if still else "",
        "" if result.peak_bytes is None else bytes_text(result.peak_bytes),
        "" if result.accuracy is None else f"{result.accuracy.relative_error:.1e}",
        others,
    ]


def race_table(cells: Iterable[Cell], title: str = "") -> Table:
    """A row a workload; columns in which nothing stands are left out."""
    found = list(map(_row, cells))
    shown = [at for at in range(len(_COLUMNS)) if at < 2 or any(one[at] for one in found)]
    headers = [_COLUMNS[at] for at in shown]
    return table(headers, ([one[at] for at in shown] for one in found), title)


def show_run(run: Run, *, quiet: bool = False) -> None:
    """Print a run's table and its verdict; with `quiet` the verdict alone. Who is tied stands beside who is first.

    Of a run that is not complete, what there is.
    """
    from attnlab.report import content_of, in_words

    content = content_of(run)
    cells = [one for one in content.analysis.cells if one.answers]
    if cells and not quiet:
        show(race_table(cells))
    click.echo(in_words(content))
