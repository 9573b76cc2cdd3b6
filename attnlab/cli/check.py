"""``attnlab check``: are these backends right?"""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from attnlab.cli import completion, options


@click.command()
@click.argument("names", nargs=-1, metavar="[BACKEND]...", shell_complete=completion.backends)
@options.device
@options.folders
@options.as_json
@options.quiet
def check(names: tuple[str, ...], device: str, folders: tuple[str, ...], as_json: bool, quiet: bool) -> int:
    """Hold backends against float64, outputs and gradients: all of them, or those named.

    Exits with 1 where one is wrong, or was named and could not be asked; with --quiet those alone are printed.
    """
    from attnlab.backends.contender import Contender
    from attnlab.backends.discovery import backends
    from attnlab.cli.progress import note
    from attnlab.runs.check import check as hold

    asked = names or backends(folders)
    for name in asked:
        Contender.parse(name).require(folders)
    with note(quiet=as_json or quiet) as on_event:
        found = [
            hold(
                name,
                folders=folders,
                device=device,
                on_event=on_event,
                keep=len(asked) > 1,
                invariance=True,
            )
            for name in asked
        ]
    failed = [one for one in found if one.passed is False or (names and one.passed is None)]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    elif quiet:
        for one in failed:
            click.echo(f"{one.name}: {'WRONG' if one.passed is False else 'not asked'}. {one.reason}")
    else:
        from attnlab.cli.tables import check_table, precision_table, same_bits_table, show

        show(check_table(found))
        if any(one.precision for one in found):
            show(precision_table(found))
        if any(one.invariance for one in found):
            show(same_bits_table(found))
    return 1 if failed else 0
