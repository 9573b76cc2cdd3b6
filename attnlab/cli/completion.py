"""``attnlab completion``: what a shell needs to complete commands, options, and names of backends and presets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

SHELLS = ("bash", "zsh", "fish")

#: what `click` asks for: from what is there so far to what may stand there
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that lets SHELL complete what is typed after `attnlab`.

    \b
    bash, in ~/.bashrc:  source <(attnlab completion bash)
    zsh, in ~/.zshrc:    source <(attnlab completion zsh)
    fish:                attnlab completion fish > ~/.config/fish/completions/attnlab.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    app = context.find_root().command
    click.echo(found(app, {}, "attnlab", "_ATTNLAB_COMPLETE").source())
    return 0


def backends(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Backends, those of the folders named so far included."""
    from attnlab.backends.discovery import backends as there

    try:
        return _beginning(typed, there(context.params.get("folders") or ()))
    except ValueError:  # a folder that is not there: told when the command runs
        return _beginning(typed, there())


def presets(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Presets and their parts."""
    from attnlab.runs.presets import chosen_parts
    from attnlab.runs.presets import presets as known

    names = known()
    return _beginning(typed, [*names, *(part.path for part in chosen_parts(",".join(names)))])


def experiments(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The numerical chapter's."""
    from attnlab.experiments.catalogue import EXPERIMENTS

    return _beginning(typed, EXPERIMENTS)


def claims(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Ids of claims."""
    from attnlab.experiments.claims import chosen

    return _beginning(typed, (one.id for one in chosen(())))


def among(*names: str) -> Complete:
    """One of these."""
    return lambda context, parameter, typed: _beginning(typed, names)


def values(field: str) -> Complete:
    """The names that a field of a workload may have, one or several between commas; nothing for numbers."""
    from dataclasses import fields

    from attnlab.problem.fields import declaration
    from attnlab.problem.workload import Workload

    told = {one.name: declaration(one) for one in fields(Workload)}
    known = {one.several: one.names for one in told.values() if one.several} | {
        name: one.names for name, one in told.items()
    }
    return listed(among(*known.get(field, ())))


def listed(one: Complete) -> Complete:
    """Several between commas: the last of them is completed."""

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
        before, comma, last = typed.rpartition(",")
        return [f"{before}{comma}{name}" for name in one(context, parameter, last)]

    return complete


def _beginning(typed: str, names: Iterable[Any]) -> list[str]:
    """Those of `names` that begin with what is typed, each once."""
    return [name for name in dict.fromkeys(map(str, names)) if name.startswith(typed)]
