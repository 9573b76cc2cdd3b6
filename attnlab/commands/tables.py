"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab.contract.discovery import backends, load
from attnlab.contract.errors import Unavailable
from attnlab.contract.units import bytes_text, seconds_text
from attnlab.contract.workload import Workload
from attnlab.program.check import Checked
from attnlab.program.compare import Comparison
from attnlab.program.selftest import Report
from attnlab.report.layout import plain
from attnlab.report.selftest_page import COLUMNS

if TYPE_CHECKING:
    from attnlab.claims.ledger import Ledger


def show(table: Table) -> None:
    """Print `table` on standard output, as wide as it needs where that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def _table(title: str, *columns: str, lines: bool = False) -> Table:
    table = Table(title=title or None, title_justify="left", show_lines=lines)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def selftest_table(found: Report) -> Table:
    """A row a trial: what was asked, what is true, what was found."""
    table = _table("", *COLUMNS)
    for one in found.trials:
        table.add_row(*(plain(str(shown(one))) for shown in COLUMNS.values()))
    return table


def comparison_table(found: Comparison) -> Table:
    """A row a contender: time, ratio with its interval, verdict, memory, error."""
    columns = ("contender", "outcome", "median", "ratio", "95 % interval", "verdict", "peak", "rel. error")
    table = _table(f"{found.workload.label}, against {found.baseline}", *columns)
    for one in found.to_json()["contenders"]:
        low, high, error = one["ratio_low"], one["ratio_high"], one["relative_error"]
        table.add_row(
            escape(one["name"]),
            one["outcome"],
            "" if one["seconds_median"] is None else seconds_text(one["seconds_median"]),
            "" if one["ratio"] is None else f"{one['ratio']:.3f}",
            "" if low is None or one["name"] == found.baseline else f"{low:.3f} to {high:.3f}",
            one["verdict"] or "",
            "" if one["peak_bytes"] is None else bytes_text(one["peak_bytes"]),
            "" if error is None else f"{error:.1e}",
        )
    return table


def check_table(found: Sequence[Checked]) -> Table:
    """A row a backend: passed or not, and why."""
    table = _table("", "backend", "result", "asked", "declined", "too slow", "gradients", "reason")
    words = {True: "right", False: "WRONG", None: "not asked"}
    for one in found:
        result = "right, as far as asked" if one.passed and one.much_left_out else words[one.passed]
        gradients = "" if not one.passed else f"none: {one.no_gradients}" if one.no_gradients else result
        counts = (str(one.asked), str(one.declined), str(one.left_out))
        without = [f"no {dtype}: {why}" for dtype, why in one.no_dtypes.items() if one.passed]
        reason = one.reason or "; ".join(without)
        table.add_row(escape(one.name), result, *counts, escape(gradients), escape(reason))
    return table


def precision_table(found: Sequence[Checked]) -> Table:
    """A row a backend, dtype and direction: how exact it is, for those that answered."""
    title = "precision: error in units of the budget of its class, largest in units in the last place, "
    title += "z of the error along the result"
    table = _table(title, "backend", "dtype", "of", "class", "relative error", "budgets", "ulp", "bias")
    for one in found:
        for dtype in one.precision:
            for what, by_dtype in (("output", one.precision), ("gradients", one.gradients)):
                if dtype in by_dtype:
                    shown = by_dtype[dtype]
                    table.add_row(
                        escape(one.name),
                        dtype,
                        what,
                        shown["class"] or "none",
                        f"{shown['relative_error']:.2e}",
                        f"{shown['budget_ratio']:.2f}",
                        f"{shown['max_ulp']:.3g}",
                        f"{shown['bias']:+.1f}",
                    )
    return table


def backend_table(device: str, folders: Sequence[str]) -> Table:
    """A row a backend: whether it can run on `device`, and what it is or why it cannot."""
    table = _table(f"backends on {device}", "backend", "library", "here", "what it is, or why it cannot run")
    for name in backends(folders):
        library, here, text = "", "no", ""
        try:
            backend = load(name, folders)
            library = backend.library
            # of what computes whole blocks, a block is asked
            reason = backend.declines(Workload(device=device, d_model=None if backend.block is None else 512))
            here, text = ("no", reason) if reason else ("yes", backend.summary)
        except (Unavailable, ValueError) as fault:
            text = str(fault)
        table.add_row(name, library, here, escape(text))
    return table


def claims_table(listed: Sequence[tuple[str, str, str]]) -> Table:
    """A row a claim: its id, its theme, and what is said."""
    table = _table("claims", "id", "theme", "claim")
    for row in listed:
        table.add_row(*row)
    return table


def ledger_table(found: Ledger) -> Table:
    """A row a claim: verdict, claim, right statement, the deciding figure."""
    from attnlab.claims.claim import ClaimVerdict
    from attnlab.claims.page import deciding_figure, verdict_of

    columns = ("id", "verdict", "claim", "what is so", "deciding figure")
    table = _table("what is claimed", *columns, lines=True)
    for entry in found.entries:
        verdict = verdict_of(entry, {one: str(one) for one in ClaimVerdict})
        cells = (entry.id, verdict, entry.says, entry.truth, deciding_figure(entry))
        table.add_row(*map(escape, cells))
    return table
