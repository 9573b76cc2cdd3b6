"""``attnlab backends``: what is there, what is not, and why."""

from __future__ import annotations

from attnlab.commands.options import Device, Folders


def command(device: Device = "cpu", implementations: Folders = None) -> int:
    """List the backends: which can run here, which cannot and why."""
    from attnlab.commands.tables import backend_table, show
    from attnlab.ground.workload import DEVICES

    if device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    show(backend_table(device, implementations or []))
    return 0
