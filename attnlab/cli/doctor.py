"""``attnlab doctor``: check a stored run and say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import click

from attnlab.cli import options


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=click.Path(path_type=Path))
@options.as_json
def doctor(folder: Path, as_json: bool) -> int:
    """Check a stored run: whole lines, one result for every contender and workload, nothing from elsewhere.

    Changes nothing. Exits with 1 where something is broken.
    """
    from attnlab.runs.doctor import examine

    found = examine(folder)
    faults = [one for one in found if one.fault]
    if as_json:
        click.echo(json.dumps([{"text": one.text, "fault": one.fault} for one in found]))
        return 1 if faults else 0
    for one in found:
        click.echo(("broken: " if one.fault else "note: ") + one.text)
    if not faults:
        click.echo(f"{folder} is in order")
    return 1 if faults else 0
