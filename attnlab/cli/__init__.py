"""The commands by name; each is imported when it is called, and imports what it needs then."""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import Any

import click

#: by name: the module that holds each command, and what `attnlab --help` says of it, the first sentence of its own help
_COMMANDS = """\
backends  backends     List the backends: which can run here, which cannot, and why.
check     backends     Hold answers and gradients of backends against float64.
claims    experiments  Measure what is often claimed about attention.
collect   stored       Write the measurements of many runs to one Parquet file.
compare   races        Race contenders on one workload; the first is the baseline.
diagnose  experiments  Say what attention does in a trained model, head by head.
diff      diff         Show two stored runs side by side.
doctor    stored       Check that a stored run is whole.
explore   stored       Make one HTML page of stored runs to explore, and open it.
gate      versions     Race HEAD against BASE: did it become slower, bigger or wrong?
numerics  experiments  Run numerical experiments and write their page.
plans     races        List the presets; of those named, the cost at each length.
report    stored       Write the report of a stored run again.
run       races        Measure a plan, write its report, and print the verdict.
selftest  races        Test the instrument on contenders whose ratio is known.
show      stored       Print the verdict and the table of a stored run.
"""
_LINES = {
    name: (home, line) for name, home, line in (one.split(maxsplit=2) for one in _COMMANDS.splitlines())
}


class _Commands(UserDict[str, Any]):
    """The commands by name, each imported when it is taken."""

    def __getitem__(self, name: str) -> click.Command:
        found: click.Command = getattr(importlib.import_module(f"attnlab.cli.{self.data[name][0]}"), name)
        return found


class _Group(click.Group):
    """Lists its commands without importing them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole sentence."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _LINES.items()])


@click.group(
    cls=_Group,
    commands=_Commands(_LINES),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="attnlab", message="attnlab %(version)s")
def app() -> None:
    """Which attention should I run here, how fast, how big, and is it right?

    For completion in a shell, in ~/.bashrc (zsh and fish alike):

    \b
    eval "$(_ATTNLAB_COMPLETE=bash_source attnlab)"
    """
