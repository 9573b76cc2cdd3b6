"""``attnlab tune``: settings under which a backend is faster here."""

from __future__ import annotations

import json
from typing import Any

import click

from attnlab.cli import options
from attnlab.cli.races import plan_of
from attnlab.workload.vocabulary import DTYPES

#: of the workloads, where nothing is said
_GRID = {"lengths": "128,512,2048", "heads": "8"}


@click.command(cls=options.WorkloadCommand)
@click.argument("contender", metavar="CONTENDER", type=options.Name(options.backends))
@options.preset
@options.workload_options(grid=True, defaults=_GRID)
@click.option(
    "--seconds", type=options.AMOUNT, default=4.0, help="Time for the rounds of each confirming race."
)
@click.option(
    "--precision",
    type=click.Choice(DTYPES),
    metavar="DTYPE",
    help="The lowest number format in which it may compute; that of the inputs by default.",
)
@options.folders
@options.as_json
@options.quiet
def tune(
    contender: str,
    seconds: float,
    precision: str | None,
    folders: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Find settings under which a backend is faster on this machine.

    Races it against itself with other threads, pages, binding and kernels, combines what helps, and confirms that in
    fresh processes on every workload. Prints the verdicts and the lines to export; what the contender already sets is
    kept. Takes two or three minutes for the three workloads that it asks by default.
    """
    from attnlab.cli.progress import note
    from attnlab.cli.tables import show
    from attnlab.race.tune import tune as search
    from attnlab.workload.drawing import SUFFIX

    if given["preset"] is None and SUFFIX not in (given["distribution"] or ""):
        given |= {name: given[name] or text for name, text in _GRID.items()}
    workloads = plan_of(None, backends=(contender,), folders=folders, **given).workloads
    with note(quiet=as_json or quiet) as on_event:
        found = search(
            contender, workloads, folders=folders, seconds=seconds, precision=precision, on_event=on_event
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        show("" if quiet else "\n".join(found.sentences()))
        for line in found.lines():
            click.echo(line)
    return 0
