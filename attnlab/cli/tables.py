"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from attnlab.judge.groups import condition, conditions
from attnlab.problem.workload import Workload
from attnlab.race.compare import Comparison
from attnlab.race.invariance import ASKED
from attnlab.race.selftest import Report
from attnlab.report.layout import plain
from attnlab.report.selftest_page import COLUMNS
from attnlab.runs.check import Checked
from attnlab.runs.listing import Listed
from attnlab.runs.presets import Part, cost
from attnlab.text import counted
from attnlab.units import bytes_text, flops_text, seconds_text

if TYPE_CHECKING:
    from attnlab.experiments.claim import Ledger


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
    """A row a contender: time, ratio with its interval, verdict, set-up, memory, error."""
    columns = (
        "contender",
        "outcome",
        "median",
        "ratio",
        "95 % interval",
        "verdict",
        "set-up",
        "peak",
        "rel. error",
    )
    table = _table(f"{found.workload.label}, against {found.baseline}", *columns)
    for one in found.to_json()["contenders"]:
        low, high, error = one["ratio_low"], one["ratio_high"], one["relative_error"]
        table.add_row(
            escape(one["name"] + (f", in {one['computes_in']}" if one["computes_in"] else "")),
            one["outcome"],
            "" if one["seconds_median"] is None else seconds_text(one["seconds_median"]),
            "" if one["ratio"] is None else f"{one['ratio']:.3f}",
            "" if low is None or one["name"] == found.baseline else f"{low:.3f} to {high:.3f}",
            one["verdict"] or "",
            "" if one["setup_seconds"] is None else seconds_text(one["setup_seconds"]),
            "" if one["peak_bytes"] is None else bytes_text(one["peak_bytes"]),
            "" if error is None else f"{error:.1e}",
        )
    return table


def check_table(found: Sequence[Checked]) -> Table:
    """A row a backend: passed or not, and why."""
    table = _table(
        "",
        "backend",
        "result",
        "asked",
        "declined",
        "too slow",
        "not compiled for",
        "gradients",
        "ln Z",
        "reason",
    )
    words = {True: "right", False: "WRONG", None: "not asked"}
    for one in found:
        result = "right, as far as asked" if one.passed and one.much_left_out else words[one.passed]
        result += "".join(f", in {lower}" for lower in dict.fromkeys(one.lower.values()))
        gradients = "" if not one.passed else f"none: {one.no_gradients}" if one.no_gradients else result
        log_sums = "" if not one.passed else "none" if one.no_log_sums else result
        counts = (str(one.asked), str(one.declined), str(one.left_out), str(one.uncompiled))
        without = [f"no {dtype}: {why}" for dtype, why in one.no_dtypes.items() if one.passed]
        reason = one.reason or "; ".join(without)
        table.add_row(escape(one.name), result, *counts, escape(gradients), log_sums, escape(reason))
    return table


def precision_table(found: Sequence[Checked]) -> Table:
    """A row a backend, dtype and direction: how exact it is, for those that answered."""
    title = "precision: error in units of the budget of its class, largest in units in the last place, "
    title += "z of the error along the result"
    table = _table(title, "backend", "dtype", "of", "class", "relative error", "budgets", "ulp", "bias")
    for one in found:
        for dtype in one.precision:
            every = {"output": one.precision, "gradients": one.gradients, "ln Z": one.log_sums}
            for what, by_dtype in every.items():
                if dtype in by_dtype:
                    shown = by_dtype[dtype]
                    table.add_row(
                        escape(one.name),
                        dtype + (f", in {one.lower[dtype]}" if dtype in one.lower else ""),
                        what,
                        shown["class"] or "none",
                        f"{shown['relative_error']:.2e}",
                        f"{shown['budget_ratio']:.2f}",
                        f"{shown['max_ulp']:.3g}",
                        f"{shown['bias']:+.1f}",
                    )
    return table


def same_bits_table(found: Sequence[Checked]) -> Table:
    """A row a backend and dtype: where it gives the same bits again."""
    table = _table(
        "the same bits again, and when a part is computed by itself", "backend", "dtype", *ASKED, ""
    )
    words = {True: "same", False: "differ", None: ""}
    for one in (each for checked in found for each in checked.invariance):
        table.add_row(
            escape(one.contender),
            one.dtype,
            *(words[one.same.get(name)] for name in ASKED),
            escape(one.reason or ""),
        )
    return table


def backend_table(device: str, found: Sequence[Listed]) -> Table:
    """A row a backend: whether it can run on `device`, and what it is or why it cannot."""
    table = _table(f"backends on {device}", "backend", "library", "here", "what it is, or why it cannot run")
    for one in found:
        here, text = ("no", one.reason) if one.reason else ("yes", one.summary)
        table.add_row(one.name, one.library, here, escape(text))
    return table


def presets_table(parts: Sequence[Part]) -> Table:
    """A row a part of a preset: its shape, its lengths, and what the shortest and the longest cost."""
    table = _table("presets", "preset", "shape", "lengths", *_COSTS)
    for part in parts:
        found = part.workloads()
        first, last = _costs(found[0]), _costs(found[-1])
        spans = (one if one == other else f"{one} to {other}" for one, other in zip(first, last, strict=True))
        lengths = ", ".join(map(str, part.said["lengths"]))
        table.add_row(part.path, _shape(part), lengths, *spans)
    return table


def costs_table(parts: Sequence[Part]) -> Table:
    """A row a workload of these parts: what it costs."""
    table = _table("", "preset", "workload", *_COSTS)
    for part in parts:
        for workload in part.workloads():
            table.add_row(part.path, workload.label, *_costs(workload))
    return table


_COSTS = ("FLOPs", "score matrix", "least bytes")


def _costs(workload: Workload) -> list[str]:
    found = cost(workload)
    flops = flops_text(found.pop("flops")).removesuffix("/s")
    return [flops, *map(bytes_text, found.values())]


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
    table = _table("claims", "id", "theme", "claim")
    for row in listed:
        table.add_row(*row)
    return table


def ledger_table(found: Ledger) -> Table:
    """A row a claim: verdict, claim, right statement, the deciding figure."""
    from attnlab.experiments.claim import ClaimVerdict

    columns = ("id", "verdict", "claim", "what is so", "deciding figure")
    table = _table("what is claimed", *columns, lines=True)
    for entry in found.entries:
        verdict = entry.verdict_in({one: str(one) for one in ClaimVerdict})
        cells = (entry.id, verdict, entry.says, entry.truth, entry.deciding_figure)
        table.add_row(*map(escape, cells))
    return table
