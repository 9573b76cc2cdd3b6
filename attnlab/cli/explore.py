"""``attnlab explore``: stored runs as one page to explore, opened in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from attnlab.cli.stored import stored_runs
from attnlab.system import without_garbage_collection


@click.command()
@click.argument("folders", metavar="RUN|DATASET...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The HTML file to write; explore.html in the first folder by default.",
)
@click.option("--no-open", "closed", is_flag=True, help="Write the page and do not open it.")
@without_garbage_collection(last=True)
def explore(folders: tuple[Path, ...], out: Path | None, closed: bool) -> int:
    """Make one HTML page of stored runs, to filter, compare and zoom into, and open it.

    The page is one file without any link to the network: send it, keep it, open it from disk.
    """
    from attnlab.report.explore_page import PAGE, write

    file = write([run for folder in folders for run in stored_runs(folder)], out or folders[0] / PAGE)
    unopened = "" if closed else _open(file)
    click.echo(f"The page: {file}" + (f" ({unopened}: open it in a browser)" if unopened else ""))
    return 0


def _open(file: Path) -> str:
    """Open `file` in the browser of whoever sits here; why that was not done, empty where it was."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, displays)):
        return "there is no display here"
    try:
        opened = webbrowser.open(file.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    return "" if opened else "no browser could be started here"
