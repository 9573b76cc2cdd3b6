"""``attnlab compare``: race contenders on one workload and say who is faster, by how much, how surely."""

from __future__ import annotations

import json

import click

from attnlab.cli import completion, options


@click.command(cls=options.WorkloadCommand)
@click.argument(
    "contenders",
    nargs=-1,
    required=True,
    metavar="CONTENDER CONTENDER...",
    shell_complete=completion.backends,
)
@options.preset
@options.workload_options(grid=False)
@click.option(
    "--seconds",
    type=float,
    help="Time for the rounds of the first five processes; 2.5 for each contender by default.",
)
@click.option(
    "--processes",
    default=8,
    show_default=True,
    help="Fresh processes of each, at most; five where they decide it.",
)
@options.folders
@options.as_json
@options.quiet
def compare(
    contenders: tuple[str, ...],
    preset: str | None,
    seconds: float | None,
    processes: int,
    folders: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **said: str | None,
) -> int:
    """Race contenders on one workload; the first is the baseline.

    Prints ratios with intervals, a verdict in a sentence, and the command that repeats it. Exits with 1 where fewer
    than two could be measured.
    """
    from attnlab.cli.progress import note
    from attnlab.problem.result import Outcome
    from attnlab.race.compare import compare as race

    if seconds is not None:
        options.positive("--seconds", seconds)
    workload = options.read_workload(said, preset)
    options.positive("--processes", processes)
    with note(quiet=as_json or quiet) as on_event:
        found = race(
            contenders, workload, folders=folders, seconds=seconds, processes=processes, on_event=on_event
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        from attnlab.cli.tables import comparison_table, show

        if not quiet:
            show(comparison_table(found))
        for line in found.sentences():
            click.echo(line)
        if not quiet:
            click.echo(f"Repeat this: {found.command}")
    measured = [result for result in found.results if result.outcome is Outcome.MEASURED]
    return 0 if len(measured) > 1 else 1
