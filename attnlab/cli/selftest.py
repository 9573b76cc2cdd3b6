"""``attnlab selftest``: is this instrument to be believed on this machine?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from attnlab.cli import completion, options
from attnlab.problem.fields import split_names


@click.command()
@click.option(
    "--backends",
    metavar="A,B",
    shell_complete=completion.listed(completion.backends),
    help="Backends to test with; all that are there by default.",
)
@click.option(
    "--conditions",
    default="idle,cpu,memory",
    show_default=True,
    shell_complete=completion.listed(completion.among("idle", "cpu", "memory")),
    help="On the machine as it is, beside a process that takes a core, one that takes the memory's bandwidth.",
)
@click.option("--seconds", default=5.0, show_default=True, help="Time for the rounds of one race.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports/selftest"),
    show_default=True,
    metavar="DIR",
    help="Where selftest.md and selftest.json go.",
)
@options.as_json
@options.quiet
def selftest(
    backends: str | None, conditions: str, seconds: float, out: Path, as_json: bool, quiet: bool
) -> int:
    """Race what is known: the same contender twice, known slow-downs, and everything against itself alone.

    Takes a quarter of an hour. Exits with 1 where an answer is wrong: then do not believe small differences here.
    """
    from attnlab.cli.progress import note
    from attnlab.race.selftest import selftest as put_to_the_test
    from attnlab.report.selftest_page import page, verdict

    options.positive("--seconds", seconds)
    out.mkdir(parents=True, exist_ok=True)  # before a quarter of an hour is spent
    chosen = split_names(backends) if backends is not None else ()
    with note(quiet=as_json or quiet) as on_event:
        found = put_to_the_test(
            names=chosen, conditions=split_names(conditions), seconds=seconds, on_event=on_event
        )
    (out / "selftest.json").write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
    (out / "selftest.md").write_text(page(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        from attnlab.cli.tables import selftest_table, show

        if not quiet:
            show(selftest_table(found))
        for line in verdict(found):
            click.echo(line)
        if not quiet:
            click.echo(f"\nThe page: {out / 'selftest.md'}  ({found.seconds:.0f} s in all)")
    return 0 if found.passed else 1
