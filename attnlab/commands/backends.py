"""``attnlab backends``: what is there, what is not, and why."""

from __future__ import annotations

import click

from attnlab.commands import options


@click.command()
@options.device
@options.folders
def backends(device: str, folders: tuple[str, ...]) -> int:
    """List the backends: which can run here, which cannot and why."""
    from attnlab.commands.progress import note
    from attnlab.commands.tables import backend_table, show
    from attnlab.contract.workload import DEVICES
    from attnlab.program.listing import listed

    if device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    with note(quiet=False) as on_event:
        found = listed(device, folders, on_event=on_event)
    show(backend_table(device, found))
    return 0
