"""``attnlab check``: are these backends right?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from attnlab.commands.options import Device, Folders, Json


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[BACKEND]...", help="All that are here by default.")
    ] = None,
    device: Device = "cpu",
    implementations: Folders = None,
    as_json: Json = False,
) -> int:
    """Hold backends against float64; exits with 1 where one is wrong, or was named and could not be asked."""
    from attnlab.checking import check
    from attnlab.commands.progress import note
    from attnlab.discovery import backends, require

    folders = implementations or []
    asked = names or backends(folders)
    for name in asked:
        require(name, folders)
    with note(quiet=as_json) as on_event:
        found = [check(name, folders=folders, device=device, on_event=on_event) for name in asked]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    else:
        from attnlab.commands.tables import check_table, show

        show(check_table(found))
    failed = [one for one in found if one.passed is False or (names and one.passed is None)]
    return 1 if failed else 0
