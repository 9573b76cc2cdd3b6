"""The options that several commands share, and the two help pages of a command.

The options of a workload (``--causal``, ``--length``, ...) are declared with the fields of `Workload`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from attnlab.text import LARGEST, split_names, without_home
from attnlab.workload.grid import GRID, by_option, choices, read_options, workloads
from attnlab.workload.workload import DEVICES, Workload, declaration, option

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def names(option: str, *also: str, metavar: str, help: str) -> Decorator:
    """An option for names separated by commas; its value is a tuple. An empty name raises ValueError."""
    return click.option(
        *(option, *also),
        metavar=metavar,
        callback=lambda context, param, text: None if text is None else tuple(split_names(text)),
        help=help,
    )


PATH = click.Path(path_type=Path)
COUNT, VISITS = click.IntRange(1, LARGEST), click.IntRange(1, 1000)
AMOUNT = click.FloatRange(0, LARGEST, min_open=True)

folders = click.option(
    "--implementations", "folders", metavar="DIR", multiple=True, help="Folder of your backends; repeatable."
)
device = click.option("--device", default="cpu", type=click.Choice(DEVICES), help="Where backends run.")
preset = click.option(
    "--preset", metavar="NAME[/PHASE],...", help="Shapes of a known model, as llama3-8b or llama3-8b/decode."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress, and print the answer alone.")
backend_names = click.argument("names", nargs=-1, metavar="[BACKEND]...")


#: ``--backends A,B`` and ``--out DIR``; each command gives its own `help`
chosen_backends = partial(names, "--backends", metavar="A,B")
out = partial(click.option, "--out", type=PATH, metavar="DIR")
seed = click.option("--seed", type=click.IntRange(0), default=0, help="Seed of every draw.")


def words_without(*names: str) -> list[str]:
    """The words of the command line, without these options and their values."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word in names:
            next(words, None)
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return kept


def typed() -> str:
    """The command line that a report shows for repetition: without ``--out``, and with ``~`` for the home folder."""
    return without_home(shlex.join(["attnlab", *words_without("--out")]))


def workload_options(*, grid: bool, defaults: Mapping[str, str] | None = None) -> Decorator:
    """Options for every field of a workload, or of a `grid` of workloads; a command gets their texts by `Choice.name`.

    defaults : default values that the help of a grid shows, by `Choice.name`; if None, those of a plan.
    """
    if defaults is None:
        defaults = {name: ",".join(map(str, values)) for name, values in GRID.items()} if grid else {}

    other = {choice.fields: choice.name for choice in choices(grid=not grid)}  # --length for --lengths

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for choice in reversed(choices(grid=grid)):
            also = {declaration(choice.fields[0]).also, other.get(choice.fields)} - {choice.name, None}
            command = click.option(
                *(option(choice.name), *(option(str(name)) for name in also)),
                choice.name,
                metavar=choice.metavar,
                help=choice.help(defaults.get(choice.name, "")),
            )(command)
        return command

    return decorate


def read_workload(
    texts: Mapping[str, str | None], preset: str | None = None
) -> tuple[Workload, str, tuple[str, ...]]:
    """The workload of the options and the `preset`, a remark if one of several was taken, and its command-line words.

    Options override the preset. Raises ValueError, naming the option that is wrong.
    """
    from attnlab.runs.plan import only_workload

    said = read_options(texts, grid=False)
    try:
        if preset is not None:
            typed = [f"{option(name)}={text}" for name, text in texts.items() if text]
            return *only_workload(preset, said), ("--preset", preset, *typed)
        (found,) = workloads(said, grid=False)
    except ValueError as fault:
        raise by_option(fault, said, grid=False) from None
    return found, "", tuple(found.options())


#: key in `click.Context.meta`, set if --help-all was given
_EVERYTHING = "attnlab.everything"


class Command(click.Command):
    """A command whose --help shows its `common` options only; --help-all shows all options.

    common : names of options; if there are none, --help shows all options too.
    Yes-or-no options need no value, even before an argument: ``--causal torch_sdpa``.
    """

    def __init__(self, *args: Any, common: Sequence[str] = (), **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._common = common
        self.params.append(click.Option(["--help-all"], is_flag=True, expose_value=False, help="Show all."))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all: first the command's own, then those of a workload under their headings."""
        named = {one.name: one for one in self.params if isinstance(one, click.Option)}
        of_help = self.get_help_option(ctx)
        found: dict[str, list[click.Option]] = {"Options": []}
        if not self._common:
            found["Options"] = list(named.values())
        elif ctx.meta.get(_EVERYTHING):
            headings = {one.name: one.group for grid in (False, True) for one in choices(grid=grid)}
            for name, option in named.items():
                found.setdefault(headings.get(name, "Options"), []).append(option)
        else:
            found["Options"] = [named[name] for name in (*self._common, "help_all")]
        found["Options"] += [of_help] if of_help else []
        for heading, options in found.items():
            records = [option.get_help_record(ctx) for option in options]
            if records:
                with formatter.section(heading):
                    formatter.write_dl([one for one in records if one])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add ``=true`` to yes-or-no options without a value, and treat ``--help-all`` as ``--help`` of all options."""
        if "--help-all" in args:
            ctx.meta[_EVERYTHING], args = True, ["--help"]
        bare = {option(one.name): one for grid in (False, True) for one in choices(grid=grid) if one.bare}
        written, rest = [], list(args)
        while rest and rest[0] != "--":
            word = rest.pop(0)
            if word in bare:
                values = "true", "false", "none", *declaration(bare[word].fields[0]).names
                word += f"={rest.pop(0) if rest and rest[0].lower() in values else 'true'}"
            written.append(word)
        return super().parse_args(ctx, [*written, *rest])
