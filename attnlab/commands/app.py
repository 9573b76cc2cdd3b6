"""The commands by name; each lives in a file of its own and is imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from attnlab.commands import backends, check, compare, report, run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Which attention should I run here, how fast, how big, and is it right?",
)


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"attnlab {importlib.metadata.version('attnlab')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which attention should I run here, how fast, how big, and is it right?"""


app.command("run")(run.command)
app.command("compare")(compare.command)
app.command("check")(check.command)
app.command("backends")(backends.command)
app.command("report")(report.command)
