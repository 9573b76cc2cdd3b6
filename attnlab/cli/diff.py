"""``attnlab diff``: two stored runs side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from attnlab.cli import options
from attnlab.plain import finite
from attnlab.system import without_garbage_collection
from attnlab.text import bytes_text, interval_text, ratio_text, seconds_text
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
