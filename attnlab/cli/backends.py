"""``attnlab backends``: what is there, what is not, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from attnlab.cli import completion, options

if TYPE_CHECKING:
    from attnlab.runs.support import Support


@click.command()
@click.argument("names", nargs=-1, metavar="[BACKEND]...", shell_complete=completion.backends)
@options.device
@options.folders
@click.option("--matrix", is_flag=True, help="Ask for every feature and run each yes once; Markdown.")
@options.as_json
def backends(
    names: tuple[str, ...], device: str, folders: tuple[str, ...], matrix: bool, as_json: bool
) -> int:
    """List the backends, or those named: which can run here, which cannot and why.

    With --matrix each of them is asked for every feature (masks, bias, soft cap, sinks, grouped heads, decoding, ...)
    in every direction and number format: yes, or the reason. Exits with 1 where one does not decline what it does not
    do.
    """
    from attnlab.backends.discovery import backends as there
    from attnlab.backends.discovery import require
    from attnlab.cli.progress import note
    from attnlab.cli.tables import backend_table, show
    from attnlab.problem.workload import DEVICES
    from attnlab.runs.listing import listed

    if device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    for name in names:
        require(name, folders)
    if as_json and not matrix:
        raise ValueError("--json belongs to --matrix; give both")
    if matrix:
        return _matrix(names or tuple(there(folders)), device, folders, as_json)
    with note() as on_event:
        found = listed(device, folders, names, on_event=on_event)
    show(backend_table(device, found))
    return 0


def _matrix(names: tuple[str, ...], device: str, folders: tuple[str, ...], as_json: bool) -> int:
    from attnlab.cli.progress import note
    from attnlab.report.support_page import page
    from attnlab.runs.support import support

    found: list[Support] = []
    with note(quiet=as_json) as on_event:
        found += (support(name, device, folders, on_event=on_event) for name in names)
    if as_json:
        click.echo(json.dumps([one.to_dict() for one in found], ensure_ascii=False))
    else:
        click.echo(page(found), nl=False)
    return 1 if any(one.faults for one in found) else 0
