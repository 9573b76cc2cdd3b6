"""The options that several commands share, and how their text is read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from attnlab.cli import completion
from attnlab.problem.grid import GRID, by_option, choices, read_options, workloads
from attnlab.problem.workload import DEVICES, Workload
from attnlab.runs.presets import only_workload
from attnlab.text import without_home

folders = click.option(
    "--implementations",
    "folders",
    metavar="DIR",
    multiple=True,
    help="A folder of backend files of your own; repeatable.",
)
device = click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="DEVICE",
    shell_complete=completion.among(*DEVICES),
    help="cpu or cuda.",
)
preset = click.option(
    "--preset",
    metavar="NAME[/PHASE],...",
    shell_complete=completion.listed(completion.presets),
    help="The shapes of a known model, as llama3-8b or llama3-8b/decode; `attnlab plans` lists them.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")

quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress, and print the verdict alone.")


def typed() -> str:
    """The command line, as a report tells its readers to repeat it: without the folder it was written into."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return without_home(shlex.join(["attnlab", *kept]))


def positive(option: str, number: float) -> float:
    """`number`. Raises ValueError, naming `option`, where it is not above 0."""
    if not number > 0:
        raise ValueError(f"{option} must be above 0, got {number:g}")
    return number


def workload_options(*, grid: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options for every field of a workload, or of a `grid` of them; their texts come by `Choice.name`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for choice in reversed(choices(grid=grid)):
            default = ",".join(map(str, GRID.get(choice.name, ()))) if grid else ""
            said = choice.help(default)
            command = click.option(
                choice.option,
                *choice.also,
                choice.name,
                metavar=choice.metavar,
                shell_complete=completion.values(choice.name),
                help=said,
            )(command)
        return command

    return decorate


def read_workload(texts: Mapping[str, str | None], preset: str | None = None) -> Workload:
    """The workload that the options say, and a preset where they say nothing.

    Raises ValueError, naming the option that is wrong.
    """
    said = read_options(texts, grid=False)
    try:
        if preset is not None:
            return only_workload(preset, said)
        (found,) = workloads(said, grid=False)
    except ValueError as fault:
        raise by_option(fault, said, grid=False) from None
    return found


class WorkloadCommand(click.Command):
    """A command whose yes-or-no options may stand bare, also before an argument: ``--causal torch_sdpa``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With ``=true`` written behind those that stand bare."""
        bare = {
            choice.option: choice for grid in (False, True) for choice in choices(grid=grid) if choice.bare
        }
        written, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                written += [word, *rest]
                break
            if word in bare:
                value = rest.pop(0) if rest and bare[word].is_value(rest[0]) else "true"
                word = f"{word}={value}"
            written.append(word)
        return super().parse_args(ctx, written)
