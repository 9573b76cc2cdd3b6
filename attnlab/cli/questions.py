"""What ``attnlab compare`` answers beside one race: the same at several values of one option."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from attnlab.backends.contender import with_setting
from attnlab.cli import options
from attnlab.cli.progress import note
from attnlab.cli.tables import Fitted, show
from attnlab.race.compare import compare
from attnlab.race.series import Series


def answer(
    contenders: Sequence[str],
    said: Mapping[str, str | None],
    preset: str | None,
    several: tuple[str, Sequence[str]],
    *,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """Race them at `several` values of an option, of threads in one race.

    said : the texts of the options of a workload. how : as for `attnlab.race.compare.compare`. Prints a table and
    sentences. Exits with 1 where nothing could be compared.
    """
    with note(quiet=as_json or quiet) as on_event:
        how["on_event"] = on_event
        name, values = several
        if name == "threads":
            every = [with_setting(one, name, value) for value in values for one in contenders]
            races = [compare(*every, workload=options.read_workload(said, preset)[0], **how)]
            found = Series.of_threads(values, contenders, races[0])
        else:
            asked = [options.read_workload({**said, name: value}, preset)[0] for value in values]
            races = [compare(*contenders, workload=one, **how) for one in asked]
            found = Series.of_races(name, dict(zip(values, races, strict=True)))
        answered = max(sum(one.latency is not None for one in race.results) for race in races) > 1
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    elif quiet:
        click.echo("\n".join(found.sentences()[:1]))
    else:
        show("\n".join(found.sentences()), Fitted(*found.table()))
        click.echo(f"\nRepeat this: {options.typed()}")
    return 0 if answered else 1
