"""Stored runs beside each other: two of them, and all of a machine over time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from attnlab.cli import options
from attnlab.errors import NotStored
from attnlab.plain import finite
from attnlab.system import without_garbage_collection
from attnlab.text import bytes_text, interval_text, one_line, ratio_text, seconds_text
from attnlab.workload.result import Outcome

T = TypeVar("T")


@click.command()
@click.argument("first", metavar="RUN", type=options.PATH)
@click.argument("second", metavar="RUN", type=options.PATH)
@click.option(
    "--anyway", is_flag=True, help="Show runs of different conditions too; nothing is called changed then."
)
@options.as_json
@without_garbage_collection(last=True)
def diff(first: Path, second: Path, anyway: bool, as_json: bool) -> int:
    """Show two stored runs side by side.

    They are of one machine and one plan, as of two versions of a library. Their seconds did not race, so that their
    ratio has no interval and no verdict. What did race is each contender and its run's baseline: "changed" says that
    the intervals of that ratio are disjoint in the two runs.
    """
    from attnlab.cli.tables import Fitted, apart, show
    from attnlab.runs import diff as two
    from attnlab.runs.store import read_run

    found = two.diff(read_run(first), read_run(second), anyway=anyway)
    if as_json:
        click.echo(json.dumps(finite(dataclasses.asdict(found))))
        return 0
    rows = []
    for row in found.rows:
        if Outcome.MEASURED not in row.outcomes and (row.news == 2 or two.NOT_ASKED in row.outcomes):
            continue  # nobody asks how long it did not take
        held = [
            one and f"{ratio_text(one.ratio)} {interval_text(one.low, one.high)}"
            for one in row.against_baseline
        ]
        texts = (
            _pair(row.outcomes, str),
            _pair(row.seconds, seconds_text),
            _pair(row.peak_bytes, bytes_text),
        )
        kernels = _pair(row.kernels, str) if row.kernels[0] != row.kernels[1] else ""
        ratio, changed = row.ratio and ratio_text(row.ratio), row.changed and "changed"
        rows.append(
            [one or "" for one in (row.workload, row.contender, *texts, ratio, *held, changed, kernels)]
        )
    shared, labels = apart([str(row[0]) for row in rows])
    both = ["first", "second"]
    against = [f"{which} / {found.baseline}" for which in both]
    columns = ["workload", "contender", "outcome", "seconds", "peak", "ratio", *against, "changed", "kernel"]
    told = [[label, *row[1:]] for label, row in zip(labels, rows, strict=True)]
    spare = ("changed", *against, "seconds", "ratio", "outcome", "peak", "kernel")
    known = [row.changed for row in found.rows if row.changed is not None]
    ratios = (
        f"{sum(known)} of {len(known)} ratios to {found.baseline} changed; seconds of two runs did not race"
    )
    differing = [
        Fitted([kind, *both], [(name, *pair) for name, pair in differs.items()], prose=both)
        for kind, differs in (("condition", found.conditions), ("software", found.software))
    ]
    answer = "Conditions differ: nothing is called changed." if found.conditions else f"{ratios}."
    show(answer, *differing, Fitted(columns, told, shared, prose=("outcome",), spare=spare))
    return 0


def _pair(values: Sequence[T | None], text: Callable[[T], str]) -> str:
    """``first → second``, or once where both are alike; empty where neither is known."""
    first, second = ("–" if one is None else text(one) for one in values)
    return ("" if first == "–" else first) if first == second else f"{first} → {second}"


@click.command()
@click.argument("places", metavar="FOLDER|DATASET...", nargs=-1, required=True, type=options.PATH)
@options.chosen_backends("Those to show; by default all. The others still say what the machine did.")
@click.option("--workload", default="", metavar="WORDS", help="With these words in their label: 'h4 n512'.")
@click.option("--seconds", "in_seconds", is_flag=True, help="Look for changes in seconds, drift included.")
@click.option("--out", type=options.PATH, metavar="DIR", default="reports/history", help="Where to write.")
@options.as_json
@without_garbage_collection(last=True)
def history(
    places: tuple[Path, ...],
    backends: tuple[str, ...] | None,
    workload: str,
    in_seconds: bool,
    out: Path,
    as_json: bool,
) -> int:
    """Write what became of every contender over many runs.

    Of all runs in and below folders: a figure a machine, change points. Machines are never mixed. Changes are looked
    for in the ratio of a contender to the machine's other libraries.
    """
    from attnlab.report import history_page
    from attnlab.runs import history as over_time

    def tell(fault: str) -> None:
        click.echo(f"attnlab: passed over: {one_line(fault)}", err=True)

    runs = over_time.found_runs(places, tell)
    found = over_time.histories(runs, backends or (), workload.split(), in_seconds=in_seconds)
    if not any(one.series for one in found):
        raise ValueError(
            "no run has a speed of such a backend at such a workload; attnlab show RUN says which"
        )
    if as_json:
        click.echo(json.dumps(finite(msgspec.to_builtins(found))))
        return 0
    try:
        page = history_page.write(found, out)
    except OSError as fault:
        raise NotStored(f"{out} cannot be written: {fault.strerror}; name another place with --out") from None
    for one in found:
        click.echo(f"{one.machine}: {history_page.summary(one)}")
    click.echo(f"The page: {page}")
    return 0
