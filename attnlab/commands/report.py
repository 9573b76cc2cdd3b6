"""``attnlab report``: make a run's report anew from what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run.")]) -> int:
    """Write the report of a stored run again, from its results alone."""
    from attnlab import report
    from attnlab.run_folder import read_run

    found = read_run(folder)
    page = report.write(found)
    typer.echo(report.verdict_text(found))
    typer.echo(f"\nThe report: {page}")
    return 0
