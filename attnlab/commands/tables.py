"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from attnlab.contract.discovery import backends, load
from attnlab.contract.errors import Unavailable
from attnlab.contract.units import bytes_text, seconds_text
from attnlab.contract.workload import Workload
from attnlab.program.check import Checked
from attnlab.program.compare import Comparison


def show(table: Table) -> None:
    """Print `table` on standard output, as wide as it needs where that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def comparison_table(found: Comparison) -> Table:
    """A row a contender: time, ratio with its interval, verdict, memory, error."""
    table = Table(title=f"{found.workload.label}, against {found.baseline}", title_justify="left")
    for column in (
        "contender",
        "outcome",
        "median",
        "ratio",
        "95 % interval",
        "verdict",
        "peak",
        "rel. error",
    ):
        table.add_column(column, overflow="fold")
    for one, result in zip(found.to_json()["contenders"], found.results, strict=True):
        interval = "" if one["ratio_low"] is None else f"{one['ratio_low']:.3f} to {one['ratio_high']:.3f}"
        table.add_row(
            one["name"],
            one["outcome"],
            "" if one["seconds_median"] is None else seconds_text(one["seconds_median"]),
            "" if one["ratio"] is None else f"{one['ratio']:.3f}",
            "" if one["name"] == found.baseline else interval,
            one["verdict"] or "",
            "" if one["peak_bytes"] is None else bytes_text(one["peak_bytes"]),
            "" if result.accuracy is None else f"{result.accuracy.relative_error:.1e}",
        )
    return table


def check_table(found: Sequence[Checked]) -> Table:
    """A row a backend: passed or not, and why."""
    table = Table(title_justify="left")
    for column in ("backend", "result", "asked", "declined", "too slow", "gradients", "reason"):
        table.add_column(column, overflow="fold")
    words = {True: "right", False: "WRONG", None: "not asked"}
    for one in found:
        result = "right, as far as asked" if one.passed and one.much_left_out else words[one.passed]
        gradients = "" if not one.passed else f"none: {one.no_gradients}" if one.no_gradients else result
        counts = (str(one.asked), str(one.declined), str(one.left_out))
        without = (
            "; ".join(f"no {dtype}: {why}" for dtype, why in one.no_dtypes.items()) if one.passed else ""
        )
        table.add_row(one.name, result, *counts, gradients, one.reason or without)
    return table


def precision_table(found: Sequence[Checked]) -> Table:
    """A row a backend, dtype and direction: how exact it is, for those that answered."""
    table = Table(
        title="precision: error in units of the budget of its class, largest in units in the last place, "
        "z of the error along the result",
        title_justify="left",
    )
    for column in ("backend", "dtype", "of", "class", "relative error", "budgets", "ulp", "bias"):
        table.add_column(column, overflow="fold")
    for one in found:
        for dtype in one.precision:
            for what, by_dtype in (("output", one.precision), ("gradients", one.gradients)):
                if dtype in by_dtype:
                    shown = by_dtype[dtype]
                    table.add_row(
                        one.name,
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
    table = Table(title=f"backends on {device}", title_justify="left")
    for column in ("backend", "library", "here", "what it is, or why it cannot run"):
        table.add_column(column, overflow="fold")
    for name in backends(folders):
        library, here, text = "", "no", ""
        try:
            backend = load(name, folders)
            library = backend.library
            reason = backend.declines(Workload(device=device))
            here, text = ("no", reason) if reason else ("yes", backend.summary)
        except (Unavailable, ValueError) as fault:
            text = str(fault)
        table.add_row(name, library, here, text)
    return table
